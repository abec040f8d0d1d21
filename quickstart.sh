#!/usr/bin/env bash
# From a fresh Debian or Ubuntu machine to a running sandbox server, and back. See ./quickstart.sh --help
set -euo pipefail

usage() {
    cat <<'TEXT'
Usage: ./quickstart.sh [COMMAND]

  start            (default) install what is missing, start the server, print the key and what to type next.
                   A second run is quick and changes nothing; after `git pull` it restarts what changed.
  --foreground     the same, then stay in the foreground with the logs until Ctrl-C or SIGTERM
  status           what runs; exit code 0 when the server is ready, 3 when it is not
  stop             stop the server, and the engine if this script started it; sandboxes live on, unless the engine's
                   live-restore is off
  uninstall        remove all that this script made: sandboxes, images, state, credentials, .venv, the web's user,
                   kernel settings. Packages stay; it says which.
  test [ARGS...]   lint and run all tests; ARGS go to pytest, for example: test tests/unit -k lease
  test vm [ARGS...]
                   the whole of it on a Debian 13 machine of its own, under QEMU: quickstart, units, nginx, reboot, upgrade
  test --engine NAME [ARGS...]
                   run tests/engine and tests/hostile on another Docker Engine of Debian's: 28, 26.1, trixie, sid
  setup, image     for developers: only engine, .venv with development tools and image; only the image
  --help           this text

Runs as root (installs with apt-get, may start Docker Engine), or as a user in the group docker where Docker runs
(needs no sudo). Nothing asks questions. Details of each step are in <state>/quickstart/quickstart.log.

Settings: SANDBOX_* variables, as docs/configuration.md lists them. Those in the environment of a start are written
to <state>/env and used again by later starts; change one by giving it again, or by editing that file.
  SANDBOX_STATE_DIR         <state>: /var/lib/sandbox-server as root, else ~/.local/share/sandbox-server
  SANDBOX_BIND              where to listen (127.0.0.1:5000)

Settings of this script alone:
  QUICKSTART_BASE_IMAGE     base of the sandbox image (debian:bookworm-slim; without a registry built by debootstrap)
  QUICKSTART_DEBIAN_MIRROR  mirror for debootstrap (the one of this machine's apt)
  QUICKSTART_IMAGE_TAG      tag of sandbox-server/default (latest), for a second installation on one machine
  QUICKSTART_VENV           the virtual environment (.venv here)
  QUICKSTART_PYTHON         the Python, 3.10 or newer, to make it with
  QUICKSTART_SYSCTLS        "no" leaves the kernel settings alone; otherwise root raises some (sandboxctl sysctl),
                            until the next reboot; nothing is written to /etc
  QUICKSTART_VM_DIR         where `test vm` keeps the disk it has made (/var/cache/sandbox-server-vm)
  QUICKSTART_VM_ACCEL       what QEMU runs it with: kvm or tcg (kvm where a kernel starts with it)
  QUICKSTART_MIN_FREE_MB    free disk space asked for before something large is made (3072)
TEXT
}

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
cd "$ROOT"
PATH=$PATH:/usr/sbin:/sbin
umask 022
export HOME=${HOME:-$(getent passwd "$(id -u)" | cut -d: -f6)}
VENV=${QUICKSTART_VENV:-$ROOT/.venv}
MIN_FREE_MB=${QUICKSTART_MIN_FREE_MB:-3072}
STEP_PID=
STARTING=
TAIL_PID=

# shellcheck source-path=SCRIPTDIR
{
    . scripts/say.sh
    . scripts/settings.sh
    . scripts/machine.sh
    . scripts/engine.sh
    . scripts/processes.sh
    . scripts/python.sh
    . scripts/image.sh
    . scripts/key.sh
    . scripts/test.sh
    . scripts/vm.sh
}

# One quickstart at a time for this directory; the lock goes when this process does.
take_lock() {
    exec 9<"$ROOT"
    flock -n 9 && return 0
    say "   Another quickstart is at work here: waiting for it."
    flock -w 1800 9 || die "Another quickstart has been at work for half an hour." "Look for it with: ps -ef"
}

release_lock() { exec 9<&-; }

# prepare [dev]: everything that a server, or a test of it, needs.
prepare() {
    need_python
    need_engine
    have curl || ! is_root || install_packages curl
    have mkfs.btrfs || ! is_root || [ "${SANDBOX_STORAGE:-btrfs}" != btrfs ] || install_packages btrfs-progs
    need_venv "$@"
    need_image
}

open_state() {
    take_lock
    find_state
    make_state
    load_settings
}

setup() {
    open_state
    prepare dev
}

image() {
    open_state
    need_engine
    need_image
}

start() {
    open_state
    need_python
    is_alive web || need_port
    prepare
    need_web_user
    raise_sysctls
    check_settings
    save_settings
    start_server
    need_ready
    tell_concern
    need_key
    show_next_commands
    release_lock
}

# Ends with the first of the two processes that ends, or on a signal, and takes the other one along.
foreground() {
    start
    trap 'stop_server; exit 0' INT TERM
    tail -n 0 -F "$OWN/keeper.log" "$OWN/web.log" --pid=$$ &
    TAIL_PID=$!
    while is_alive keeper && is_alive web; do sleep 1 & wait $! || true; done
    stop_server
    die "The server ended by itself." "Its last lines are above, and in $OWN/*.log."
}

status() {
    local name rc=0
    find_state
    load_settings
    for name in keeper web; do
        if is_alive "$name"; then
            say "$name: running, pid $PID"
        else
            say "$name: stopped"
            rc=3
        fi
    done
    if engine_answers; then say "engine: answers"; else say "engine: ${ENGINE_ERROR:-no answer}"; fi
    say "state: $STATE"
    if [ "$rc" -eq 0 ] && need_python; then
        say "$URL/readyz: $(ask /readyz)"
        [[ $(ask /readyz) == 200* ]] || rc=3
    else
        say "Start it with: ./quickstart.sh"
    fi
    return "$rc"
}

stop() {
    take_lock
    find_state
    load_settings
    is_alive web || is_alive keeper || we_started_engine || { say "The server is not running." && return 0; }
    stop_server
    local what="the server" then="Open sandboxes live on; ./quickstart.sh finds them again."
    if we_started_engine; then
        what+=" and the Docker Engine that this script had started"
        sandboxes_outlive_engine || then="Its sandboxes ended with it."
        stop_engine
    fi
    say "Stopped $what. $then"
}

uninstall() {
    take_lock
    find_state
    load_settings
    [ -d "$OWN" ] || { say "Nothing is installed in $STATE." && return 0; }
    need_python
    # What an engine of ours holds can only be removed while it runs.
    engine_answers || ! was_made engine || start_engine
    remove_sandboxes
    stop_server
    release_storage
    if engine_answers; then remove_images; else warn "No engine answers: its images stay. $ENGINE_ERROR"; fi
    stop_engine
    remove_engine_settings
    remove_credentials
    restore_sysctls
    if was_made user "${SANDBOX_WEB_USER:-}"; then userdel "$SANDBOX_WEB_USER" 2>/dev/null || true; fi
    if was_made venv "$VENV"; then rm -rf "$VENV"; fi
    remove_state
    say "Uninstalled."
}

remove_sandboxes() {
    [ -x "$VENV/bin/python" ] || return 0
    engine_answers || return 0
    timeout 120 "$VENV/bin/python" -m server.ctl close-all >>"$LOG" 2>&1 || {
        tail -n 5 "$LOG" | sed 's/^/    /' >&2
        warn "Sandboxes may be left. List them: docker ps -a --filter label=sandbox-server.instance"
    }
}

# What is mounted below the state directory would be in the way of removing it.
release_storage() {
    [ ! -x "$VENV/bin/python" ] || "$VENV/bin/python" -m server.ctl unmount >>"$LOG" 2>&1 \
        || warn "The storage of workspaces is still mounted at $STATE/volumes; see $LOG."
}

remove_state() {
    local packages
    packages=$(sed -n 's/^package //p' "$OWN/made" 2>/dev/null | sort -u | tr '\n' ' ')
    [ -z "$packages" ] || say "Packages that were installed stay. To remove them too: apt-get remove $packages"
    if was_made state-dir; then
        rm -rf --one-file-system "$STATE"
    else
        rm -rf "$OWN" "$STATE/env" "$STATE/env.good"
        say "$STATE was there before: what the server kept in it stays."
    fi
}

on_exit() {
    end_step
    stop_half_started
    [ -z "$TAIL_PID" ] || kill "$TAIL_PID" 2>/dev/null || true
    clean_up_test
}
trap on_exit EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
trap 'exit 129' HUP
trap 'exit 141' PIPE

command=${1:-start}
[ $# -eq 0 ] || shift
if [ "$command" = start ] && [ "${1:-}" = --foreground ]; then
    command=--foreground
    shift
fi
[ $# -eq 0 ] || [ "$command" = test ] || die "Too many arguments: $*" "./quickstart.sh --help lists the commands."
case $command in
    start | stop | status | uninstall | setup | image) "$command" ;;
    --foreground) foreground ;;
    test) if [ "${1:-}" = vm ]; then test_vm "${@:2}"; else run_tests "$@"; fi ;;
    -h | --help | help) usage ;;
    *) die "Unknown command: $command" "./quickstart.sh --help lists the commands." ;;
esac
