# shellcheck shell=bash
# Where things are, and the SANDBOX_* settings that one start remembers for the next.

# Sets STATE (the server's state directory), OWN (the part of it that only quickstart writes) and LOG.
find_state() {
    if [ -z "${SANDBOX_STATE_DIR:-}" ]; then
        if is_root; then
            SANDBOX_STATE_DIR=/var/lib/sandbox-server
        else
            SANDBOX_STATE_DIR=${XDG_DATA_HOME:-$HOME/.local/share}/sandbox-server
        fi
    fi
    export SANDBOX_STATE_DIR
    STATE=$SANDBOX_STATE_DIR
    OWN=$STATE/quickstart
    LOG=$OWN/quickstart.log
    [[ $STATE == /* ]] || die "SANDBOX_STATE_DIR must be an absolute path, not '$STATE'."
}

make_state() {
    local fresh=no
    { [ -d "$STATE" ] && [ -n "$(ls -A "$STATE" 2>/dev/null)" ]; } || fresh=yes
    { mkdir -p "$OWN" && chmod 0700 "$OWN" && touch "$LOG"; } 2>/dev/null \
        || die "Cannot write to the state directory $STATE." \
            "Choose one of your own: SANDBOX_STATE_DIR=\$HOME/sandbox-state ./quickstart.sh"
    [ -O "$OWN" ] || die "$OWN belongs to somebody else." "Run this as its owner, or set SANDBOX_STATE_DIR."
    # Only a directory that was ours from the start is removed whole by uninstall.
    [ "$fresh" = no ] || made state-dir
}

# made WHAT...: remembers for uninstall that quickstart itself made this.
made() { was_made "$@" || printf '%s\n' "$*" >>"$OWN/made"; }

was_made() { grep -qxF -- "$*" "$OWN/made" 2>/dev/null; }

# The caller's variables win over the remembered ones.
load_settings() {
    local line name
    if [ -f "$STATE/env" ]; then
        [ -O "$STATE/env" ] || die "$STATE/env belongs to somebody else." "Run this as its owner, or remove it."
        while IFS= read -r line; do
            [[ $line =~ ^(SANDBOX_[A-Z0-9_]+)=(.*)$ ]] || continue
            name=${BASH_REMATCH[1]}
            [ -n "${!name+set}" ] || export "$name=${BASH_REMATCH[2]}"
        done <"$STATE/env"
    fi
    : "${SANDBOX_BIND:=127.0.0.1:5000}"
    if is_root; then : "${SANDBOX_WEB_USER:=sandbox-web}"; fi
    find_image
    if [ -n "${DOCKER_HOST:-}" ]; then : "${SANDBOX_DOCKER_HOST:=$DOCKER_HOST}"; fi
    for name in SANDBOX_BIND SANDBOX_WEB_USER SANDBOX_IMAGES SANDBOX_DOCKER_HOST; do
        [ -z "${!name:-}" ] || export "${name?}"
    done
    if [ -n "${SANDBOX_DOCKER_HOST:-}" ]; then export DOCKER_HOST=$SANDBOX_DOCKER_HOST; fi
    find_url
}

# Sets IMAGE. A tag of its own is remembered with the settings.
find_image() {
    IMAGE=sandbox-server/default:${QUICKSTART_IMAGE_TAG:-latest}
    if [ -n "${QUICKSTART_IMAGE_TAG:-}" ]; then
        : "${SANDBOX_IMAGES:=default=$IMAGE}"
    elif [[ ${SANDBOX_IMAGES:-} =~ (sandbox-server/default:[A-Za-z0-9_.-]+) ]]; then
        IMAGE=${BASH_REMATCH[1]}
    fi
}

# Sets BIND_HOST, BIND_PORT and URL: where this machine reaches the server.
find_url() {
    BIND_HOST=${SANDBOX_BIND%:*} BIND_PORT=${SANDBOX_BIND##*:}
    [[ $SANDBOX_BIND == *:* && $BIND_PORT =~ ^[0-9]{1,5}$ ]] \
        || die "SANDBOX_BIND must be HOST:PORT, not '$SANDBOX_BIND'." "For example SANDBOX_BIND=127.0.0.1:5001"
    case $BIND_HOST in
        0.0.0.0 | '') URL=http://127.0.0.1:$BIND_PORT ;;
        '[::]') URL="http://[::1]:$BIND_PORT" ;;
        *) URL=http://$BIND_HOST:$BIND_PORT ;;
    esac
}

save_settings() {
    local name text=
    for name in $(compgen -A export SANDBOX_ | LC_ALL=C sort); do
        case $name in SANDBOX_URL | SANDBOX_API_KEY) continue ;; esac # the client's, and a secret
        [[ ${!name} != *$'\n'* ]] || die "$name has a line break in it." "Give it on one line."
        text+="$name=${!name}"$'\n'
    done
    if [ "$text" != "$(cat "$STATE/env" 2>/dev/null)"$'\n' ]; then
        [ ! -f "$STATE/env" ] || [ -f "$STATE/env.good" ] || cp -p "$STATE/env" "$STATE/env.good"
        (umask 027 && printf '%s' "$text" >"$STATE/env.new") && mv "$STATE/env.new" "$STATE/env"
    fi
}

# Settings with which the server did not start must not spoil the next start.
forget_bad_settings() {
    [ -f "$STATE/env.good" ] || return 0
    warn "These settings were new; the next start has those of the last good one again:"
    diff "$STATE/env.good" "$STATE/env" | sed -n 's/^> /    new:    /p; s/^< /    before: /p' >&2 || true
    mv "$STATE/env.good" "$STATE/env"
}

keep_settings() { rm -f "$STATE/env.good"; }
