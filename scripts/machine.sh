# shellcheck shell=bash
# What the machine must have: packages, room, a free port, the web's user, the kernel's settings.

# install_packages PACKAGE...: with apt, as root; otherwise says what to ask for.
install_packages() {
    is_root || die "Missing on this machine: $*" "Ask its administrator for: apt-get install $*"
    have apt-get || die "Missing on this machine: $*, and there is no apt-get." \
        "Install them with your system's package manager, then run this again."
    MUST_FINISH="apt-get install $*" step "Install $*" apt_install "$@" || die "The packages could not be installed: $*" \
        "Check the network (or http_proxy) and /etc/apt/sources.list*, then run this again."
    local package
    LISTS_ARE_FRESH=yes
    for package in "$@"; do made package "$package"; done
}

# RUNLEVEL=1: where no init system runs, a package must not start its daemon on its own: we do, and remember it.
apt_install() {
    local apt=(apt-get -o DPkg::Lock::Timeout=120 -o Acquire::Retries=2 -o Acquire::http::Timeout=30)
    export DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1
    [ -d /run/systemd/system ] || export RUNLEVEL=1
    [ -n "${LISTS_ARE_FRESH:-}" ] || timeout 300 "${apt[@]}" update \
        || echo "(apt-get update failed: trying with the lists that are there)"
    # After a machine or an apt that was cut off; nothing can be installed before.
    [ -z "$(ls -A /var/lib/dpkg/updates 2>/dev/null)" ] || timeout 600 dpkg --force-confold --configure -a || return
    timeout 900 "${apt[@]}" install -y --no-install-recommends "$@"
}

# need_room DIRECTORY: the first start fills about 1.5 GB; an engine on a full disk fails in odd ways.
need_room() {
    local dir=$1 free
    while [ ! -d "$dir" ]; do dir=$(dirname "$dir"); done
    free=$(df -Pk "$dir" | awk 'NR == 2 { print int($4 / 1024) }')
    [ "$free" -ge "$MIN_FREE_MB" ] || die "The disk is nearly full: $free MB free at $dir, $MIN_FREE_MB MB needed." \
        "Make room (docker system df shows what the engine holds), then run this again."
}

# need_port: says who has it, before minutes are spent on anything else.
need_port() {
    local problem owner=
    problem=$("$PYTHON" -I - "${BIND_HOST:-0.0.0.0}" "$BIND_PORT" <<'PY'
import errno, socket, sys
host, port = sys.argv[1].strip("[]"), int(sys.argv[2])
try:
    family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, proto) as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        s.bind(address)
except (OSError, OverflowError) as exc:
    print("in use" if getattr(exc, "errno", 0) == errno.EADDRINUSE else exc)
PY
    )
    [ -n "$problem" ] || return 0
    if [ "$problem" = 'in use' ]; then
        if have ss; then
            owner=$(ss -Hltnp "sport = :$BIND_PORT" 2>/dev/null | sed -n 's/.*users:(("\([^"]*\)",pid=\([0-9]*\).*/ by \1 (pid \2)/p' | head -n 1)
        fi
        die "Port $BIND_PORT on ${BIND_HOST:-every address} is in use$owner." \
            "Stop that program, or choose another port: SANDBOX_BIND=127.0.0.1:5001 ./quickstart.sh"
    fi
    die "The server cannot listen on $SANDBOX_BIND: $problem" \
        "Set SANDBOX_BIND to an address of this machine and a port above 1023."
}

# The web workers run as a user that owns nothing and sees no engine.
need_web_user() {
    is_root || return 0
    getent passwd "$SANDBOX_WEB_USER" >/dev/null && return 0
    useradd --system --user-group --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin \
        "$SANDBOX_WEB_USER" >>"$LOG" 2>&1 || die "The user $SANDBOX_WEB_USER could not be made; see $LOG." \
        "Make it yourself (useradd --system $SANDBOX_WEB_USER), or name another one in SANDBOX_WEB_USER."
    made user "$SANDBOX_WEB_USER"
}

# Raises the kernel settings that the wall counts on, and remembers what they were. Not permanent.
raise_sysctls() {
    is_root && [ "${QUICKSTART_SYSCTLS:-yes}" = yes ] || return 0
    local name old now changed=
    while read -r name old now; do
        grep -q "^$name " "$OWN/sysctls" 2>/dev/null || echo "$name $old $now" >>"$OWN/sysctls"
        changed+=" $name=$now"
    done < <("$VENV/bin/python" -m server.ctl sysctl 2>>"$LOG")
    [ -z "$changed" ] || say " ✓ Kernel settings raised until the next reboot:$changed"
}

# Puts back what nobody has changed since.
restore_sysctls() {
    [ -f "$OWN/sysctls" ] || return 0
    local name old ours file
    while read -r name old ours; do
        [ -n "$ours" ] || continue
        file=/proc/sys/${name//.//}
        [ "$(cat "$file" 2>/dev/null)" = "$ours" ] || continue
        { echo "$old" >"$file"; } 2>/dev/null || warn "$name stays at $ours until the next reboot."
    done <"$OWN/sysctls"
    rm -f "$OWN/sysctls"
}
