# shellcheck shell=bash
# `./quickstart.sh test`: lint and every test, from a bare machine.

# A state directory of its own, removed at the end with the engine, if this run had to start one. What stays, to make
# the next run quick: .venv, the sandbox image, and packages that had to be installed (with live-restore for an engine).
run_tests() {
    local lint=0 tests=0 engine=
    if [ "${1:-}" = --engine ]; then
        [ -n "${2:-}" ] || die "--engine needs a version or a release." "For example: ./quickstart.sh test --engine 28"
        engine=$2
        shift 2
    fi
    forget_settings
    make_test_state
    open_state
    prepare dev
    have chromium || have chromium-browser || have google-chrome || install_packages chromium
    have systemd-analyze || install_packages systemd  # what it says of our units; it need not run
    have openssl || install_packages openssl  # certificates for the tests of nginx
    have redis-server || install_packages redis-server
    have crun || install_packages crun
    need_runsc
    release_lock
    forget_settings
    if [ -n "$engine" ]; then
        use_engine "$engine"
        [ $# -gt 0 ] || set -- tests/engine tests/hostile
    else
        QUICKSTART_VENV=$VENV bash scripts/check.sh || lint=1
        [ "$lint" -eq 0 ] || printf '\nerror: the checks above failed, and so will this run; the tests come next.\n\n' >&2
    fi
    run_lanes "$@" || tests=$?
    if [ "$tests" -eq 1 ] && few_failed; then
        printf '\nWhat failed is run once more, by itself: on a busy machine a moment can be missed.\n'
        printf 'A test that fails twice fails this run.\n\n'
        tests=0
        run_pytest again --last-failed --last-failed-no-failures none "$@" || tests=$?
    fi
    sum_up
    [ "$tests" -ne 0 ] || tests=$lint
    exit "$tests"
}

make_test_state() {
    TEST_STATE=$(mktemp -d "${TMPDIR:-/var/tmp}/sandbox-test.XXXXXX") # /tmp may be in memory
    SANDBOX_STATE_DIR=$TEST_STATE
}

# gVisor. The release's own package may be years old: the one from backports is unpacked for this run alone.
need_runsc() {
    [ -z "${TEST_RUNSC:-}" ] || return 0
    local release
    release=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)-backports
    if MAY_FAIL="the release's own package will do" step "Fetch a newer runsc" \
        "$VENV/bin/python" tests/hosts/debian.py "$release" "$TEST_STATE/packages" runsc; then
        export TEST_RUNSC=$TEST_STATE/packages/$release/root/usr/bin/runsc
    else
        have runsc || install_packages runsc
    fi
}

# use_engine NAME: the tests of this run have that engine of Debian's, which runs beside this machine's own.
use_engine() {
    local address=$TEST_STATE/engine programs
    step "Start Docker Engine $1 beside this machine's own" start_test_engine "$1" "$address" \
        || die "Docker Engine $1 could not be started." "The lines above say why."
    { read -r DOCKER_HOST && read -r programs; } <"$address"
    export DOCKER_HOST TEST_ENGINE_PROGRAMS=$programs
}

start_test_engine() {
    spawn test-engine env PYTHONPATH=.:client:tests "$VENV/bin/python" tests/hosts/engines.py "$1" "$2"
    local deadline=$((SECONDS + 300))
    until [ -s "$2" ]; do
        is_alive test-engine && [ "$SECONDS" -lt "$deadline" ] || { tail -n 15 "$OWN/test-engine.log" && return 1; }
        sleep 0.3
    done
}

# First those that judge the whole machine, one after the other; then all others, three files at a time: most of them wait for something.
run_lanes() {
    local alone=0 others=0
    run_pytest alone --cache-clear -m alone "$@" || alone=$?
    [ "$alone" -le 1 ] || [ "$alone" -eq 5 ] || return "$alone"
    run_pytest others -m 'not alone' --numprocesses 3 --dist loadfile "$@" || others=$?
    case $alone,$others in
        5,*) return "$others" ;; # 5: none was asked for
        *,5) return "$alone" ;;
    esac
    [ "$others" -ne 0 ] || return "$alone"
    return "$others"
}

# run_pytest NAME ARGS...
run_pytest() {
    local name=$1
    shift
    "$VENV/bin/python" -m pytest --basetemp="$TEST_STATE/pytest" --junitxml="$TEST_STATE/$name.xml" "$@"
}

# The lanes in one line; a test that was run again counts by what came of it then.
sum_up() { "$VENV/bin/python" scripts/sum_up.py "$TEST_STATE"/{alone,others,again}.xml; }

# Many failures are not a matter of moments.
few_failed() {
    local failed=$ROOT/.pytest_cache/v/cache/lastfailed
    [ -f "$failed" ] && [ "$(grep -c '": true' "$failed")" -le 12 ]
}

# The tests set their own.
forget_settings() {
    local name
    for name in $(compgen -A export SANDBOX_); do unset "$name"; done
}

clean_up_test() {
    [ -n "${TEST_STATE:-}" ] || return 0
    stop_process test-engine 90
    stop_engine >/dev/null 2>&1
    rm -rf --one-file-system "$TEST_STATE"
}
