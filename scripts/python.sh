# shellcheck shell=bash
# A Python that is new enough, and the virtual environment with the server, its requirements and the client.

is_new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1; }

# The web workers give up root: a Python in a private home directory could load nothing there any more.
others_can_use() {
    local home
    home=$("$1" -c 'import os; print(os.path.dirname(os.__file__))') || return 1
    ! is_root || ! have setpriv || setpriv --reuid=65534 --regid=65534 --clear-groups test -r "$home/os.py" 2>/dev/null
}

# Sets PYTHON. As root one that every user can run is preferred.
find_python() {
    local candidate second=
    local usual='python3 /usr/bin/python3 python3.14 python3.13 python3.12 python3.11 python3.10'
    for candidate in ${QUICKSTART_PYTHON:-$usual}; do
        is_new_enough "$candidate" || continue
        PYTHON=$(command -v "$candidate")
        others_can_use "$PYTHON" && return 0
        second=${second:-$PYTHON}
    done
    PYTHON=$second
    [ -n "$PYTHON" ]
}

need_python() {
    find_python && return 0
    [ -z "${QUICKSTART_PYTHON:-}" ] || die "QUICKSTART_PYTHON ($QUICKSTART_PYTHON) is not a Python 3.10 or newer."
    if is_root && have apt-get; then install_packages python3 python3-venv; fi
    find_python || die "No Python 3.10 or newer was found." \
        "Install one (apt-get install python3 python3-venv), or point QUICKSTART_PYTHON at it."
}

# need_venv [dev]: makes or updates it; a stamp over everything that goes in makes the second run skip this.
# .venv is ours; one that the caller named is only if it was not there before.
need_venv() {
    local wants=requirements.txt stamp=$VENV/.stamp
    if [ "${1:-}" = dev ]; then wants=requirements-dev.txt stamp=$VENV/.dev-stamp; fi
    [ -n "${QUICKSTART_VENV:-}" ] && [ -e "$VENV" ] || made venv "$VENV"
    if [ "$(cat "$stamp" 2>/dev/null)" = "$(venv_hash "$wants")" ] && "$VENV/bin/python" -c '' 2>/dev/null; then
        return 0
    fi
    need_room "$VENV"
    [ -w "$(dirname "$VENV")" ] || die "Cannot write to $(dirname "$VENV"), where the virtual environment belongs." \
        "Work in a copy of the project that is yours, or set QUICKSTART_VENV to a directory of yours."
    "$PYTHON" -c 'import ensurepip' 2>/dev/null || install_packages "$(venv_package)"
    step "Install Python packages into ${VENV#"$ROOT"/}" fill_venv "$wants" \
        || die "The Python packages could not be installed." \
            "Check the network (or http_proxy, PIP_INDEX_URL) and $LOG, then run this again."
    venv_hash "$wants" >"$stamp"
    venv_hash requirements.txt >"$VENV/.stamp"
}

venv_hash() { hash_of requirements.txt "$1" client scripts/python.sh && "$PYTHON" -V && echo "$ROOT"; }

# Debian's own python3 goes with python3-venv, another one of its Pythons with python3.X-venv.
venv_package() {
    if [ "$PYTHON" -ef /usr/bin/python3 ]; then
        echo python3-venv
    else
        "$PYTHON" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])'
    fi
}

# The server itself is not copied: a .pth file points at this directory, so that `git pull` updates it.
fill_venv() {
    local pip=("$VENV/bin/python" -m pip --disable-pip-version-check)
    is_new_enough "$VENV/bin/python" || "$PYTHON" -m venv --clear "$VENV" || return
    timeout 1200 "${pip[@]}" install --retries 2 -r "$1" || return
    timeout 300 "${pip[@]}" install --retries 2 --force-reinstall --no-deps ./client || return
    rm -rf client/build client/*.egg-info # what the build leaves in the checkout
    "$VENV/bin/python" -c 'import sys, sysconfig, pathlib
pathlib.Path(sysconfig.get_path("purelib"), "sandbox-server.pth").write_text(sys.argv[1] + "\n")' "$ROOT" || return
    printf '#!/bin/sh\nexec %q -m server.ctl "$@"\n' "$(cd "$VENV/bin" && pwd)/python" >"$VENV/bin/sandboxctl"
    chmod 755 "$VENV/bin/sandboxctl"
}
