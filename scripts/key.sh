# shellcheck shell=bash
# The API key, and the file from which the client reads it.

CREDENTIALS=${XDG_CONFIG_HOME:-$HOME/.config}/sandbox/credentials.json

# field NAME: of the credentials file; empty where there is none.
field() {
    "$PYTHON" -I - "$CREDENTIALS" "$1" <<'PY'
import json, sys
try:
    with open(sys.argv[1], encoding="utf-8") as file:
        print(json.load(file).get(sys.argv[2], ""))
except (OSError, ValueError, AttributeError):
    pass
PY
}

# Sets KEY: the one from the file while the server accepts it, otherwise a new one.
need_key() {
    made credentials "$CREDENTIALS"
    KEY=$(field api_key)
    if [ -n "$KEY" ] && [[ $(ask '/v1/sessions?limit=1' "$KEY") == 200* ]]; then
        [ "$(field url)" = "$URL" ] || write_credentials
        return 0
    fi
    # Somebody's key to another server is not ours to lose.
    if [ -n "$KEY" ] && [ "$(field url)" != "$URL" ]; then
        mv "$CREDENTIALS" "$CREDENTIALS.previous"
        say "   The credentials of $(CREDENTIALS=$CREDENTIALS.previous field url) are now in $CREDENTIALS.previous"
    fi
    KEY=$("$VENV/bin/python" -m server.ctl key new --name quickstart 2>>"$LOG" | grep -oE -m1 'e2b_[0-9a-f]{80}') \
        || die "No API key could be made." "See the end of $LOG."
    write_credentials
    say " ✓ A new API key, written to $CREDENTIALS"
}

write_credentials() {
    mkdir -p "$(dirname "$CREDENTIALS")"
    (umask 077 && printf '{"url": "%s", "api_key": "%s"}\n' "$URL" "$KEY" >"$CREDENTIALS.new") \
        && mv "$CREDENTIALS.new" "$CREDENTIALS"
}

remove_credentials() {
    was_made credentials "$CREDENTIALS" && [ "$(field url)" = "$URL" ] || return 0
    rm -f "$CREDENTIALS"
    if [ -f "$CREDENTIALS.previous" ]; then mv "$CREDENTIALS.previous" "$CREDENTIALS"; fi
    rmdir "$(dirname "$CREDENTIALS")" 2>/dev/null || true
}

show_next_commands() {
    local python
    python=$(printf %q "$VENV/bin/python")
    cat <<TEXT

The sandbox server answers at $URL

Your API key (kept in $CREDENTIALS):

  $KEY

Try it with curl:

  KEY=$KEY
  SESSION=\$(curl -sS -X POST $URL/create_session -H "Authorization: Bearer \$KEY" | sed -n 's/.*"session_id": *"\([^"]*\)".*/\1/p')
  curl -sS -X POST $URL/execute -H "Authorization: Bearer \$KEY" -H "Content-Type: application/json" -d '{"session_id": "'\$SESSION'", "command": "echo hello from \$(whoami)"}'

or with Python:

  $python - <<'END'
from sandbox_client import SandboxClient
with SandboxClient() as sandbox:
    result = sandbox.execute("ls -la")
    print(result.output, result.exit_code)
END

or in a terminal of its own: $(printf %q "$VENV/bin/sandbox") shell

Next: ./quickstart.sh status | stop | uninstall | --help        Logs: $OWN/*.log
TEXT
}
