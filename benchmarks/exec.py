"""What one command costs, side by side in one run: ours, the engine's own exec, peers, and the floors.

Machines differ and are noisy: only the ratios within one run mean anything. Everybody is measured in turns,
so that noise meets all alike.
"""

from __future__ import annotations

import argparse
import itertools
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from common import Figures, machine_facts, print_machine, print_table, say, tidy, write_json
from contenders import EXEC_RUN, NO_OP, OURS, Contender, Field, line_up
from peers import CannotRun
from wire import Done, Load, put_under

_LOADED = (OURS, EXEC_RUN, NO_OP)


@dataclass(frozen=True)
class Effort:
    """How much is measured. Slow contenders get fewer turns; theirs vary less."""

    rounds: int
    fast_turns: int
    slow_turns: int
    load_rounds: int
    load_seconds: float
    clients: tuple[int, ...]
    sessions: tuple[int, ...]


_FULL = Effort(30, 40, 4, load_rounds=2, load_seconds=5.0, clients=(1, 8, 32), sessions=(1, 8))
_QUICK = Effort(2, 10, 1, load_rounds=1, load_seconds=0.3, clients=(1, 8), sessions=(1,))


@dataclass(frozen=True)
class Target:
    what: str
    found: float
    limit: float
    met: bool


def latency(field: Field, effort: Effort) -> dict[str, Figures]:
    """A peer that fails in the middle is left out, with the reason."""
    samples: dict[str, list[float]] = {contender.name: [] for contender in field.contenders}
    for number in range(effort.rounds):
        say(f"latency: round {number + 1} of {effort.rounds}")
        for contender in field.contenders:
            turns = effort.slow_turns if contender.slow else effort.fast_turns
            try:
                samples[contender.name] += _turns(contender, 0 if contender.name in field.missing else turns)
            except CannotRun as exc:
                field.missing[contender.name] = f"failed in round {number + 1}: {exc}"
    return {name: Figures.of(values) for name, values in samples.items() if name not in field.missing}


def _turns(contender: Contender, count: int) -> list[float]:
    """A few before the clock starts: they dial, and bring what the others pushed out of the caches back."""
    milliseconds: list[float] = []
    for _ in range(min(count, 1 if contender.slow else 5)):
        contender.once()
    for _ in range(count):
        began = time.perf_counter()
        contender.once()
        milliseconds.append((time.perf_counter() - began) * 1000)
    return milliseconds


@dataclass(frozen=True)
class Throughput:
    name: str
    clients: int
    sessions: int
    per_second: float
    p50: float
    p95: float
    failed: int


def throughput(field: Field, effort: Effort) -> list[Throughput]:
    """Every combination in turns, then all of them again; the rounds count together."""
    combinations = list(itertools.product(effort.clients, effort.sessions, _LOADED))
    found: dict[tuple[int, int, str], list[Done]] = {combination: [] for combination in combinations}
    for number in range(effort.load_rounds):
        for clients, sessions, name in combinations:
            say(f"load: round {number + 1}, {clients} clients over {sessions} sessions, {name}")
            load = Load(field.requests[name][:sessions], clients, effort.load_seconds)
            found[clients, sessions, name].append(put_under(load))
    return [
        _summed(name, clients, sessions, found[clients, sessions, name]) for clients, sessions, name in found
    ]


def _summed(name: str, clients: int, sessions: int, rounds: list[Done]) -> Throughput:
    milliseconds = [value for done in rounds for value in done.milliseconds]
    figures = Figures.of(milliseconds or [0.0])
    per_second = len(milliseconds) / sum(done.seconds for done in rounds)
    failed = sum(done.failed for done in rounds)
    return Throughput(name, clients, sessions, per_second, figures.p50, figures.p95, failed)


def show_latency(found: dict[str, Figures], missing: dict[str, str]) -> None:
    rows = [
        [
            name,
            f"{figures.p50:.2f}",
            f"{figures.p95:.2f}",
            f"{figures.p50 / found[NO_OP].p50:.1f}",
            f"{found[EXEC_RUN].p50 / figures.p50:.1f}",
            str(figures.samples),
        ]
        for name, figures in sorted(found.items(), key=lambda item: item[1].p50)
    ]
    heads = [
        "one client, `true`",
        "p50 ms",
        "p95 ms",
        "x no-op",
        "x faster than exec_run behind Flask",
        "samples",
    ]
    print_table("Latency", heads, rows)
    for name, reason in missing.items():
        print(f"{name} is not in the table: {reason}")


def show_throughput(found: list[Throughput]) -> None:
    rates = {(one.name, one.clients, one.sessions): one.per_second for one in found}
    rows = []
    for one in found:
        peer = rates[EXEC_RUN, one.clients, one.sessions]
        cells = [
            f"{one.clients}",
            f"{one.sessions}",
            f"{one.per_second:.0f}",
            f"{one.p50:.1f}",
            f"{one.p95:.1f}",
        ]
        ratio = f"{one.per_second / peer:.1f}" if peer else "-"
        rows.append([one.name, *cells, ratio, str(one.failed)])
    heads = ["throughput", "clients", "sessions", "requests/s", "p50 ms", "p95 ms", "x exec_run", "failed"]
    print_table("Throughput", heads, rows)


def judge(figures: dict[str, Figures], rates: list[Throughput]) -> list[Target]:
    ours, no_op, peer = figures[OURS].p50, figures[NO_OP].p50, figures[EXEC_RUN].p50
    targets = [
        Target(
            "p50 of /execute in ms, at most 2x no-op Flask + 1 ms", ours, 2 * no_op + 1, ours <= 2 * no_op + 1
        ),
        Target("times faster than exec_run behind Flask, at least 15", peer / ours, 15, peer / ours >= 15),
    ]
    clients = max(one.clients for one in rates)
    for sessions in sorted({one.sessions for one in rates}):
        most = {
            one.name: one.per_second for one in rates if (one.clients, one.sessions) == (clients, sessions)
        }
        ratio = most[OURS] / most[EXEC_RUN]
        what = f"throughput against exec_run behind Flask, {clients} clients over {sessions}, at least 10x"
        targets.append(Target(what, ratio, 10, ratio >= 10))
    return targets


def show_targets(targets: list[Target]) -> None:
    rows = [
        [one.what, f"{one.found:.2f}", f"{one.limit:.2f}", "met" if one.met else "MISSED"] for one in targets
    ]
    print_table("Targets", ["target", "found", "limit", ""], rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a few turns and no peers: shows that it works")
    parser.add_argument("--no-peers", action="store_true", help="install nothing from PyPI")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found there as well")
    arguments = parser.parse_args()
    effort = _QUICK if arguments.quick else _FULL
    machine = machine_facts()
    print_machine(machine)
    with tidy() as things:
        field = things.enter_context(
            line_up(max(effort.sessions), not (arguments.quick or arguments.no_peers))
        )
        figures = latency(field, effort)
        show_latency(figures, field.missing)
        rates = throughput(field, effort)
        show_throughput(rates)
    targets = judge(figures, rates)
    show_targets(targets)
    found = {
        "machine": machine,
        "latency": {name: asdict(one) for name, one in figures.items()},
        "missing": field.missing,
        "throughput": [asdict(one) for one in rates],
        "targets": [asdict(one) for one in targets],
    }
    write_json(arguments.json, found)


if __name__ == "__main__":
    main()
