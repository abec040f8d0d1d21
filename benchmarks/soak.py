"""Does anything grow? Thousands of sessions come and go, thousands of commands run; the server is weighed.

It is weighed when the first hundred are done, and at the end. Rows of sessions that ended are kept for 7
days, so the database may grow by what they take.
"""

from __future__ import annotations

import argparse
import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import footprint
from common import (
    Figures,
    Stack,
    machine_facts,
    our_server,
    print_machine,
    print_table,
    say,
    tidy,
    write_json,
)

_CLIENTS = 4
_EARLY = 100  # are done when the server is weighed for the first time
_SETTLE_SECONDS = 12.0  # until the pool is as large as it will be, and connections have been let go

Growth = dict[str, tuple[int, int, int, bool]]


def cycle(stack: Stack) -> None:
    """One session: opened, used, closed."""
    session = open_session(stack)
    execute(stack, session)
    answer = stack.call("POST", "/cleanup", json={"session_id": session})
    answer.raise_for_status()


def open_session(stack: Stack) -> str:
    answer = stack.call("POST", "/create_session", timeout=120)
    answer.raise_for_status()
    return str(answer.json()["session_id"])


def execute(stack: Stack, session: str) -> None:
    body = {"session_id": session, "command": "x=$((x + 1)); echo $x; echo $x > file"}
    answer = stack.call("POST", "/execute", json=body)
    answer.raise_for_status()
    if answer.json()["exit_code"] != 0:
        raise RuntimeError(answer.text[:300])


def soak(
    stack: Stack, what: str, count: int, once: Callable[[int], None], sessions: int
) -> tuple[Growth, Figures]:
    """Early and late, and how long each took. `sessions` are opened on the way."""
    times: list[float] = []
    lock = threading.Lock()

    def timed(number: int) -> None:
        began = time.perf_counter()
        once(number)
        with lock:
            times.append((time.perf_counter() - began) * 1000)
            if len(times) % max(1, count // 20) == 0:
                say(f"{what}: {len(times)} of {count}")

    early = min(_EARLY, count // 2)
    with ThreadPoolExecutor(_CLIENTS) as pool:
        list(pool.map(timed, range(early)))
        time.sleep(_SETTLE_SECONDS)
        before = footprint.look(stack)
        list(pool.map(timed, range(early, count)))
    time.sleep(_SETTLE_SECONDS)
    return footprint.grown(before, footprint.look(stack), sessions), Figures.of(times)


def show(what: str, growth: Growth, figures: Figures) -> None:
    rows = [
        [name, f"{before:,}", f"{now:,}", f"{limit:,}", "met" if held else "MISSED"]
        for name, (before, now, limit, held) in growth.items()
    ]
    print_table(
        f"{what} (p50 {figures.p50:.1f} ms, p95 {figures.p95:.1f} ms)",
        ["", "early", "end", "limit", ""],
        rows,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a few: shows that it works")
    parser.add_argument("--cycles", type=int, default=2000, help="sessions that come and go")
    parser.add_argument("--executes", type=int, default=10000, help="commands")
    parser.add_argument("--sessions", type=int, default=50, help="sessions that the commands run in")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found there as well")
    arguments = parser.parse_args()
    cycles, executes, sessions = (
        (24, 200, 3) if arguments.quick else (arguments.cycles, arguments.executes, arguments.sessions)
    )
    machine = machine_facts()
    print_machine(machine)
    found = {}
    with tidy() as things:
        settings = {"SANDBOX_POOL_MIN": "4", "SANDBOX_POOL_MAX": "4", "SANDBOX_SESSIONS_MAX": "200"}
        stack = things.enter_context(our_server(**settings))
        what = f"{cycles} sessions, opened, used and closed"
        found[what] = soak(stack, what, cycles, lambda _: cycle(stack), cycles)
        show(what, *found[what])
        with ThreadPoolExecutor(_CLIENTS) as pool:
            ids = list(pool.map(lambda _: open_session(stack), range(sessions)))
        what = f"{executes} commands in {sessions} sessions"
        found[what] = soak(stack, what, executes, lambda at: execute(stack, ids[at % sessions]), 0)
        show(what, *found[what])
        with contextlib.suppress(OSError):
            stack.close_sessions()
    write_json(
        arguments.json,
        {"machine": machine, **{name: {"growth": one, "ms": vars(ms)} for name, (one, ms) in found.items()}},
    )


if __name__ == "__main__":
    main()
