# shellcheck shell=bash
# Our processes. A pid file holds the pid and its start time, so that a reused number is never taken for ours.

# start_time PID: in clock ticks since boot; fails for one that is gone or a zombie.
start_time() {
    local stat
    stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 1
    read -ra stat <<<"${stat##*) }"
    [ "${stat[0]}" != Z ] && echo "${stat[19]}"
}

# is_alive NAME: also sets PID.
is_alive() {
    local since
    PID=
    read -r PID since 2>/dev/null <"$OWN/$1.pid" || return 1
    [[ $PID =~ ^[0-9]+$ ]] && [ -n "$since" ] && [ "$(start_time "$PID")" = "$since" ]
}

# spawn NAME COMMAND...: in a session of its own, without our lock, with its output in NAME.log.
spawn() {
    local name=$1 log=$OWN/$1.log
    shift
    if [ "$(stat -c %s "$log" 2>/dev/null || echo 0)" -gt 20000000 ]; then mv -f "$log" "$log.1"; fi
    setsid nohup "$@" >>"$log" 2>&1 </dev/null 9>&- &
    echo "$! $(start_time $!)" >"$OWN/$name.pid"
}

# stop_process NAME SECONDS: asks, waits, then insists.
stop_process() {
    local name=$1 deadline=$((SECONDS + $2)) pid
    if is_alive "$name"; then
        pid=$PID
        kill -TERM "$pid" 2>/dev/null || true
        while is_alive "$name" && [ "$SECONDS" -lt "$deadline" ]; do sleep 0.1; done
        if is_alive "$name"; then
            warn "$name (pid $pid) did not stop within $2 s and is killed."
            kill -KILL -- "-$pid" 2>/dev/null || true
        fi
    fi
    rm -f "$OWN/$name.pid"
}

# What a running server was started from. Another value means: restart it (sandboxes live through that).
current_build() {
    { hash_of server deploy/gunicorn.conf.py requirements.txt; cat "$STATE/env" "$VENV/.stamp"; } | sha256sum
}

# Before they are remembered: a start with a wrong setting must not spoil the next one.
check_settings() {
    local problem
    problem=$("$VENV/bin/python" -m server.ctl config 2>&1 >/dev/null) && return 0
    printf '%s\n' "$problem" | tail -n 5 | sed 's/^/    /' >&2
    die "The server does not accept its settings." "Correct the SANDBOX_* variable named above (also in $STATE/env)."
}

start_server() {
    local build
    build=$(current_build)
    if is_alive keeper && is_alive web; then
        [ "$build" = "$(cat "$OWN/build" 2>/dev/null)" ] && return 0
        say "   The settings or the code changed: the server is restarted; open sandboxes live on."
    fi
    stop_server
    need_port
    "$VENV/bin/python" -m server.ctl init >>"$LOG" 2>&1 || {
        tail -n 5 "$LOG" | sed 's/^/    /' >&2
        die "The state directory $STATE could not be prepared." "See the lines above and $STATE/env."
    }
    spawn keeper "$VENV/bin/python" -m server.keeper
    spawn web "$VENV/bin/python" -m gunicorn -c deploy/gunicorn.conf.py
    printf '%s\n' "$build" >"$OWN/build"
}

stop_server() {
    stop_process web 45
    stop_process keeper 30
}

# ask PATH [KEY]: prints the status (000: no answer) and the body. Never through a proxy, never a wait over 5 s.
ask() {
    ASK_KEY=${2:-} "$PYTHON" -I - "$URL$1" <<'PY'
import os, sys, urllib.error, urllib.request
request = urllib.request.Request(sys.argv[1])
if os.environ.get("ASK_KEY"):
    request.add_header("Authorization", "Bearer " + os.environ["ASK_KEY"])
try:
    answer = urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=5)
except urllib.error.HTTPError as exc:
    answer = exc
except (OSError, ValueError) as exc:
    print("000", exc)
    sys.exit()
print(answer.status, answer.read(2000).decode("utf-8", "replace"))
PY
}

wait_until_ready() {
    local deadline=$((SECONDS + 90)) answer=
    while [ "$SECONDS" -lt "$deadline" ]; do
        is_alive keeper || { echo "The keeper ended." && return 1; }
        is_alive web || { echo "The web server ended." && return 1; }
        answer=$(ask /readyz)
        [[ $answer != 200* ]] || return 0
        sleep 0.2
    done
    echo "Last answer of $URL/readyz: $answer"
    return 1
}

# What is wrong with the storage is also said here, where somebody reads it.
tell_concern() {
    local answer
    answer=$(ask /readyz)
    if [[ $answer =~ \"storage\":\ ?\"([^\"]*)\" ]]; then
        warn "Workspaces: ${BASH_REMATCH[1]}. See docs/operations.md, Storage."
    fi
}

need_ready() {
    [[ $(ask /readyz) != 200* ]] || return 0
    step "Wait until the server is ready" wait_until_ready && return 0
    local name
    for name in keeper web; do
        printf '    The last lines of %s:\n' "$OWN/$name.log" >&2
        tail -n 10 "$OWN/$name.log" | sed 's/^/    | /' >&2
    done
    stop_server
    die "The server did not become ready." \
        "The lines above say why. Settings are in $STATE/env; correct them there, then run this again."
}
