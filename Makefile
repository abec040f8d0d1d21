# `make` alone lists the chores. Each works from a fresh clone; setup is done where it is missing.
.DEFAULT_GOAL := help
PYTEST := .venv/bin/python -m pytest

help: ## list the chores
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## /\1\t/' \
		| while IFS="$$(printf '\t')" read -r name what; do printf '  make %-12s %s\n' "$$name" "$$what"; done

setup: ## engine, .venv with the development tools, sandbox image
	./quickstart.sh setup

check: .venv/.dev-stamp ## lint, format and types
	bash scripts/check.sh

test: ## everything, on a fresh machine too (the same as ./quickstart.sh test)
	./quickstart.sh test

test-unit: .venv/.dev-stamp ## the tests that need no engine
	$(PYTEST) tests/unit

test-engine: setup ## the tests against a real Docker Engine
	$(PYTEST) tests/engine

test-e2e: setup ## quickstart, SDK and the README's commands, from outside
	$(PYTEST) tests/e2e

test-vm: ## quickstart, units, nginx, reboot and upgrade on a Debian machine under QEMU
	./quickstart.sh test vm

bench: setup ## side by side with peers
	.venv/bin/python benchmarks/exec.py
	.venv/bin/python benchmarks/lifecycle.py
	.venv/bin/python benchmarks/files.py
	.venv/bin/python benchmarks/snapshots.py

chaos: setup ## everything that can die dies for ten minutes under load
	CHAOS_SECONDS=600 CHAOS_SEED=$$(date +%s) $(PYTEST) -s tests/chaos

soak: setup ## does anything grow? thousands of sessions and commands
	.venv/bin/python benchmarks/soak.py
	.venv/bin/python benchmarks/density.py
	SOAK_SECONDS=120 $(PYTEST) -s tests/e2e/test_soak_streams.py

image: ## build the sandbox image
	./quickstart.sh image

run: ## start the server in the foreground
	./quickstart.sh --foreground

fmt: .venv/.dev-stamp ## format the code and fix what can be fixed
	.venv/bin/ruff check --fix-only .
	.venv/bin/ruff format .

.venv/.dev-stamp:
	./quickstart.sh setup

.PHONY: help setup check test test-unit test-engine test-e2e test-vm bench chaos soak image run fmt
