# shellcheck shell=bash
# `./quickstart.sh test`: lint and every test, from a bare machine.

# A state directory of its own, removed at the end with the engine, if this run had to start one. What stays, to make
# the next run quick: .venv, the sandbox image, and packages that had to be installed.
run_tests() {
    local lint=0 tests=0
    forget_settings
    TEST_STATE=$(mktemp -d "${TMPDIR:-/tmp}/sandbox-test.XXXXXX")
    SANDBOX_STATE_DIR=$TEST_STATE
    open_state
    prepare dev
    have chromium || have chromium-browser || have google-chrome || install_packages chromium
    release_lock
    forget_settings
    QUICKSTART_VENV=$VENV bash scripts/check.sh || lint=1
    [ "$lint" -eq 0 ] || printf '\nerror: the checks above failed, and so will this run; the tests come next.\n\n' >&2
    "$VENV/bin/python" -m pytest --basetemp="$TEST_STATE/pytest" "$@" || tests=$?
    [ "$tests" -ne 0 ] || tests=$lint
    exit "$tests"
}

# The tests set their own.
forget_settings() {
    local name
    for name in $(compgen -A export SANDBOX_); do unset "$name"; done
}

clean_up_test() {
    [ -n "${TEST_STATE:-}" ] || return 0
    stop_engine >/dev/null 2>&1
    rm -rf --one-file-system "$TEST_STATE"
}
