"""How fast a file goes into a sandbox and out of it, beside `docker cp` of the same file.

Both in turns, in one run: only the ratios mean anything elsewhere. The server's memory is watched meanwhile.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from common import (
    Stack,
    machine_facts,
    our_server,
    plain_containers,
    print_machine,
    print_table,
    say,
    tidy,
    write_json,
)

_LEAST = 100.0  # MB/s
_MOST_GROWTH = 32  # MiB
_PIECE = 1 << 20
_SECONDS = 600

Way = Callable[[Path], None]


@dataclass(frozen=True)
class Target:
    what: str
    found: float
    limit: float
    met: bool


@contextlib.contextmanager
def file_of(size: int) -> Iterator[Path]:
    """Bytes that nothing can compress or leave out."""
    with tempfile.TemporaryDirectory(prefix="sbx-bench-") as place:
        path = Path(place, "file")
        with path.open("wb") as file:
            for _ in range(size // _PIECE):
                file.write(os.urandom(_PIECE))
        yield path


def our_ways(stack: Stack) -> dict[str, Way]:
    answer = stack.call("POST", "/v1/sessions", json={"memory": 512 << 20})
    answer.raise_for_status()
    path = f"/v1/sessions/{answer.json()['session_id']}/files/content?path=file"
    headers = {"X-API-Key": stack.key}

    def up(file: Path) -> None:
        with contextlib.closing(connect(stack)) as connection, file.open("rb") as content:
            sized = {**headers, "Content-Length": str(file.stat().st_size)}
            connection.request("PUT", path, body=content, headers=sized)
            if connection.getresponse().status not in (200, 201):
                raise RuntimeError("the upload was refused")

    def down(file: Path) -> None:
        with contextlib.closing(connect(stack)) as connection, file.open("wb", buffering=0) as target:
            connection.request("GET", path, headers=headers)
            copy(connection.getresponse(), target.write)

    return {"up": up, "down": down}


def connect(stack: Stack) -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", stack.port, timeout=_SECONDS, blocksize=_PIECE)


def copy(source: http.client.HTTPResponse, write: Callable[[memoryview], int | None]) -> None:
    buffer = memoryview(bytearray(_PIECE))
    while size := source.readinto(buffer):
        write(buffer[:size])


def docker_ways(container: str) -> dict[str, Way]:
    def cp(source: str, target: str) -> None:
        subprocess.run(["docker", "cp", source, target], check=True, capture_output=True, timeout=_SECONDS)

    inside = f"{container}:/tmp/file"
    return {"up": lambda file: cp(str(file), inside), "down": lambda file: cp(inside, str(file))}


def measure(ways: dict[str, dict[str, Way]], file: Path, rounds: int) -> dict[str, dict[str, float]]:
    """MB/s, the median of all rounds. The first round is for warming up."""
    size = file.stat().st_size
    found: dict[str, dict[str, list[float]]] = {name: {"up": [], "down": []} for name in ways}
    for number in range(rounds + 1):
        say(f"round {number} of {rounds}")
        for name, both in ways.items():
            for way, carry in both.items():
                place = file if way == "up" else file.with_name("back")
                began = time.perf_counter()
                carry(place)
                if number:
                    found[name][way].append(size / 1e6 / (time.perf_counter() - began))
            back = file.with_name("back")
            if back.stat().st_size != size:
                raise RuntimeError(f"{name}: what came back is not what was sent")
            back.unlink()
    return {
        name: {way: statistics.median(rates) for way, rates in both.items()} for name, both in found.items()
    }


def peak_memory(stack: Stack) -> int:
    """MiB of the web worker that has ever had most."""
    master = stack.processes["web"].pid
    pids = Path(f"/proc/{master}/task/{master}/children").read_text().split()
    lines = [line for pid in pids for line in Path(f"/proc/{pid}/status").read_text().splitlines()]
    return max(int(line.split()[1]) >> 10 for line in lines if line.startswith("VmHWM"))


def judge(rates: dict[str, dict[str, float]], growth: int) -> list[Target]:
    ours = rates["ours"]
    return [
        Target("upload, MB/s, at least", ours["up"], _LEAST, ours["up"] >= _LEAST),
        Target("download, MB/s, at least", ours["down"], _LEAST, ours["down"] >= _LEAST),
        Target("growth of the largest web worker, MiB, below", growth, _MOST_GROWTH, growth < _MOST_GROWTH),
    ]


def show(rates: dict[str, dict[str, float]], size: int, targets: list[Target]) -> None:
    rows = [[name, *(f"{rate:.0f}" for rate in both.values())] for name, both in rates.items()]
    ratios = [rates["ours"][way] / rates["docker cp"][way] for way in ("up", "down")]
    rows.append(["ours / docker cp", *(f"{ratio:.2f}x" for ratio in ratios)])
    print_table(f"A file of {size >> 20} MiB, MB/s", ["", "up", "down"], rows)
    judged = [
        [one.what, f"{one.found:.0f}", f"{one.limit:.0f}", "met" if one.met else "MISSED"] for one in targets
    ]
    print_table("Targets", ["target", "found", "limit", ""], judged)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a small file, once: shows that it works")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found there as well")
    arguments = parser.parse_args()
    size, rounds = (16 << 20, 1) if arguments.quick else (1 << 30, 3)
    machine = machine_facts()
    print_machine(machine)
    with tidy() as things:
        stack = things.enter_context(our_server(SANDBOX_DISK="4g", SANDBOX_STORAGE_SIZE="10g"))
        (container,) = things.enter_context(plain_containers(1))
        file = things.enter_context(file_of(size))
        before = peak_memory(stack)
        ways = {"ours": our_ways(stack), "docker cp": docker_ways(str(container.id))}
        rates = measure(ways, file, rounds)
        targets = judge(rates, peak_memory(stack) - before)
    show(rates, size, targets)
    found = {"machine": machine, "rates": rates, "targets": [asdict(one) for one in targets]}
    write_json(arguments.json, found)


if __name__ == "__main__":
    main()
