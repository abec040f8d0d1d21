# shellcheck shell=bash
# Words to the person: messages, failures, and long steps with their seconds.

say() { printf '%s\n' "$*"; }

warn() { printf 'warning: %s\n' "$*" >&2; }

# die WHAT_IS_WRONG WHAT_TO_DO...
die() {
    printf '\nerror: %s\n' "$1" >&2
    shift
    [ $# -eq 0 ] || printf '  -> %s\n' "$@" >&2
    exit 1
}

is_root() { [ "$(id -u)" -eq 0 ]; }

have() { command -v "$1" >/dev/null 2>&1; }

# step NAME COMMAND...: runs COMMAND with its output in the log and shows NAME with the seconds it takes.
# MAY_FAIL holds what to say where a failure is nothing to worry about, MUST_FINISH what an interruption waits for.
# COMMAND runs in a subshell where `set -e` has no effect: chain with && inside it.
step() {
    local name=$1 started=$SECONDS from pid rc=0
    shift
    printf '\n== %s  %s\n' "$(date -u +%FT%TZ)" "$name" >>"$LOG"
    from=$(stat -c %s "$LOG")
    rm -f "$LOG.waiting"
    export QUICKSTART_STEP=$$.$RANDOM.$SECONDS # by which end_step knows what it started
    set -m
    "$@" >>"$LOG" 2>&1 </dev/null &
    pid=$!
    set +m
    STEP_PID=$pid
    show_progress "$name" "$pid" "$started"
    wait "$pid" || rc=$?
    STEP_PID=
    unset QUICKSTART_STEP
    if [ "$rc" -eq 0 ]; then
        printf '%s %s (%d s)\n' "$DONE_MARK" "$name" $((SECONDS - started))
        return 0
    fi
    if [ -n "${MAY_FAIL:-}" ]; then
        printf '%s %s: %s (%d s)\n' "$SKIP_MARK" "$name" "$MAY_FAIL" $((SECONDS - started))
        return "$rc"
    fi
    printf '%s %s failed after %d s. The last lines of %s:\n' "$FAIL_MARK" "$name" $((SECONDS - started)) "$LOG" >&2
    tail -c "+$((from + 1))" "$LOG" | tail -n 15 | sed 's/^/    /' >&2
    return "$rc"
}

# waiting_for WORDS: what a step waits for, shown beside its seconds.
waiting_for() { printf '%s\n' "$*" >"$LOG.waiting"; }

# Ends all that an interrupted step has started: also in groups and sessions of their own, as `timeout` makes them.
# One that must not be cut off, as apt in the midst of a package, is waited for first.
end_step() {
    [ -n "${QUICKSTART_STEP:-}" ] || return 0
    local group=${STEP_PID:+-$STEP_PID} pid=${STEP_PID:-} insist give_up signal=TERM
    STEP_PID=
    if [ -n "${MUST_FINISH:-}" ] && [ -n "$pid" ]; then
        say "   Waiting until this is finished: $MUST_FINISH" >&2
        insist=$((SECONDS + 300))
        while kill -0 "$pid" 2>/dev/null && [ "$SECONDS" -lt "$insist" ]; do sleep 0.2; done
    fi
    insist=$((SECONDS + 10)) give_up=$((SECONDS + 20))
    # shellcheck disable=SC2046,SC2086 # numbers, each a word
    while kill -s "$signal" -- $group $(step_processes) 2>/dev/null && [ "$SECONDS" -lt "$give_up" ]; do
        [ "$SECONDS" -lt "$insist" ] || signal=KILL
        sleep 0.2
    done
    return 0
}

# A process that this shell has forked and that runs no program yet has the environment of the shell.
step_processes() {
    grep -lszxF "QUICKSTART_STEP=$QUICKSTART_STEP" /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3
}

# On a terminal the line counts seconds; elsewhere a line says what began, and one every 20 s that it goes on.
show_progress() {
    local name=$1 pid=$2 started=$3 last=0 now reason
    [ -t 1 ] || printf '   %s ...\n' "$name"
    while kill -0 "$pid" 2>/dev/null; do
        now=$((SECONDS - started))
        if [ -t 1 ]; then
            reason=$(cut -c 1-100 "$LOG.waiting" 2>/dev/null || true)
            printf '\r\e[K   %s ... %d s %s' "$name" "$now" "${reason:+($reason)}"
        elif [ $((now - last)) -ge 20 ]; then
            reason=$(cut -c 1-300 "$LOG.waiting" 2>/dev/null || true)
            printf '   %s ... %d s %s\n' "$name" "$now" "${reason:+($reason)}"
            last=$now
        fi
        sleep 0.1
    done
}

if [ -t 1 ]; then
    DONE_MARK=$'\r\e[K ✓' FAIL_MARK=$'\r\e[K ✗' SKIP_MARK=$'\r\e[K -'
else
    DONE_MARK=' ✓' FAIL_MARK=' ✗' SKIP_MARK=' -'
fi

# hash_of PATH...: one hash over the names and contents of the files under PATHs (relative to the project).
hash_of() {
    find "$@" -type f ! -path '*/__pycache__/*' ! -path '*.egg-info/*' ! -path '*/build/*' -print0 \
        | LC_ALL=C sort -z | xargs -0 -r sha256sum | sha256sum | cut -c1-32
}
