#!/usr/bin/env bash
# Lint, format and types. Runs every check before it fails, so that one run shows everything.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
bin=${QUICKSTART_VENV:-.venv}/bin
failed=0

check() {
    printf -- '-- %s\n' "$*"
    "$bin/$1" "${@:2}" || failed=1
}

check ruff check --output-format concise .
check ruff format --check .
check mypy
check shellcheck -x -a quickstart.sh scripts/check.sh .ci/run
exit "$failed"
