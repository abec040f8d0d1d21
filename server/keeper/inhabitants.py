"""Processes of this host that live in sandboxes of ours, or stand guard before one, found without the engine.

What the engine forgot may still run. A process is known by what is mounted at /run/sandbox where it lives,
the engine's shim by the container that it was started for. Only root sees either.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

_ID = rb"/([0-9a-f]{32})/run"
_SHIM = "containerd-shim"


def inhabitants(sandboxes: Path) -> dict[str, list[int]]:
    """The processes of each sandbox that lies below the directory `sandboxes`, shims included."""
    found: dict[str, list[int]] = {}
    ours = _root_of(sandboxes)
    known: dict[str, str | None] = {os.readlink("/proc/self/ns/mnt"): None}
    for process in _processes():
        try:
            space = os.readlink(process / "ns" / "mnt")
            if space not in known:
                known[space] = _lives_in(process, ours) if ours is not None else None
            sandbox = known[space] or _guards(process, sandboxes)
        except OSError:
            continue  # it has ended, or is not ours to look into
        if sandbox is not None:
            found.setdefault(sandbox, []).append(int(process.name))
    return found


def evict(sandboxes: Path, sandbox: str) -> None:
    """End all of them. Each is looked at again when it is held by a descriptor: a number may change hands."""
    for pid in inhabitants(sandboxes).get(sandbox, []):
        try:
            held = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            if pid in inhabitants(sandboxes).get(sandbox, []):
                signal.pidfd_send_signal(held, signal.SIGKILL)
        except ProcessLookupError:
            continue
        finally:
            os.close(held)


def _processes() -> Iterator[Path]:
    return (Path(entry.path) for entry in os.scandir("/proc") if entry.name.isdigit())


def _root_of(directory: Path) -> bytes | None:
    """Device and path by which mount tables name the directory; None unless something is mounted there."""
    roots = [named for place, named in _mounted("/proc/self/mountinfo") if place == os.fsencode(directory)]
    return roots[-1] if roots else None


def _lives_in(process: Path, ours: bytes) -> str | None:
    for place, named in _mounted(process / "mountinfo"):
        if place == b"/run/sandbox" and (match := re.match(re.escape(ours) + _ID, named)):
            return match[1].decode()
    return None


def _mounted(table: str | Path) -> Iterator[tuple[bytes, bytes]]:
    with open(table, "rb") as lines:
        for line in lines:
            _, _, device, root, place, *_ = line.split()
            yield place, device + b" " + root


def _guards(process: Path, sandboxes: Path) -> str | None:
    """What a shim works on is described in the directory that it was started in."""
    if (process / "comm").read_text().strip() != _SHIM:
        return None
    told = (process / "cwd" / "config.json").read_bytes()
    match = re.search(re.escape(os.fsencode(sandboxes)) + _ID, told)
    return match[1].decode() if match else None
