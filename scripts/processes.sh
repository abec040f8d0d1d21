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

QUIET_SECONDS=300  # without anything new, until a start is given up
FAILING_SECONDS=90 # the same where the server says that something is wrong
FAILURES=4         # so many sandboxes that could not be started end it sooner
START_SECONDS=1800 # and whatever happens

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
    STARTING=yes
    spawn keeper "$VENV/bin/python" -m server.keeper
    spawn web "$VENV/bin/python" -m gunicorn -c deploy/gunicorn.conf.py
    printf '%s\n' "$build" >"$OWN/build"
}

stop_server() {
    stop_process web 45
    stop_process keeper 30
}

# What was interrupted before it was ready does not go on by itself.
stop_half_started() {
    [ -n "$STARTING" ] || return 0
    STARTING=
    say "Interrupted: the server, which was not ready yet, is stopped again." >&2
    stop_server
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

# /readyz is 200 once a sandbox was started and ran a command. What it has not said before is progress.
wait_until_ready() {
    local answer='' patience deadline=0 failures=0 last=$((SECONDS + START_SECONDS))
    local -A seen=()
    while true; do
        is_alive keeper || { echo "The keeper ended." && return 1; }
        is_alive web || { echo "The web server ended." && return 1; }
        answer=$(ask /readyz)
        [[ $answer != 200* ]] || return 0
        if [ -z "${seen[$answer]:-}" ]; then
            seen[$answer]=yes patience=$QUIET_SECONDS
            if [[ $answer == *'"unavailable"'* ]]; then patience=$FAILING_SECONDS; fi
            if [[ $answer == *'"sandbox":"'* && $answer != *'"sandbox":"ok"'* ]]; then failures=$((failures + 1)); fi
            deadline=$((SECONDS + patience))
            waiting_for "$(what_is_done "$answer")"
        fi
        [ "$failures" -lt "$FAILURES" ] || { echo "No sandbox could be started: $answer" && return 1; }
        [ "$SECONDS" -lt "$deadline" ] || { echo "Nothing new for $patience s: $answer" && return 1; }
        [ "$SECONDS" -lt "$last" ] || { echo "Not ready after $START_SECONDS s: $answer" && return 1; }
        sleep 0.2
    done
}

# Of an answer of /readyz; nothing of one that is something else.
what_is_done() {
    "$PYTHON" -I - "${1#* }" <<'PY'
import json, sys
try:
    told = json.loads(sys.argv[1])
    wrong = [f"{name}: {words}" for name, words in told["checks"].items() if words != "ok"]
    print("; ".join([*wrong, *([told["doing"]] if told["doing"] else [])]))
except (ValueError, LookupError, TypeError, AttributeError):
    pass
PY
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
    if [[ $(ask /readyz) == 200* ]] || step "Wait until a sandbox runs" wait_until_ready; then
        STARTING=
        keep_settings
        return 0
    fi
    local name
    for name in keeper web; do
        printf '    The last lines of %s:\n' "$OWN/$name.log" >&2
        grep -v '"route": "/readyz"' "$OWN/$name.log" | tail -n 10 | cut -c 1-500 | sed 's/^/    | /' >&2
    done
    printf '    The keeper says of itself (sandboxctl status):\n' >&2
    "$VENV/bin/python" -m server.ctl status 2>&1 | cut -c 1-1000 | sed 's/^/    | /' >&2 || true
    stop_server
    STARTING=
    forget_bad_settings
    die "The server did not become ready." \
        "The lines above say why. Settings are in $STATE/env; correct them there, then run this again."
}
