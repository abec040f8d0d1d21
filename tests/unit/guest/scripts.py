"""Our scripts that work on the user's files, run as the guest runs them but without one."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from guest_process import ROOT

LIMIT = 64 << 20
_START = "import sys; sys.path.insert(0, sys.argv.pop(1)); from guest.{module} import main; main()"


@dataclass(frozen=True)
class Done:
    """What a script wrote, and each line that it said."""

    written: bytes
    said: list[dict[str, Any]]

    @property
    def last(self) -> dict[str, Any]:
        return self.said[-1]


def encoded(path: str | bytes | Path) -> str:
    return (path if isinstance(path, bytes) else str(path).encode()).decode("latin-1")


def _command(module: str, home: Path, path: str | bytes = ".", **asked: Any) -> list[str]:
    asked = {"roots": [encoded(home)], "path": encoded(path), "limit": LIMIT, **asked}
    return ["python3", "-IS", "-c", _START.format(module=module), str(ROOT / "server"), json.dumps(asked)]


def script(module: str, home: Path, given: bytes = b"", **asked: Any) -> Done:
    command = _command(module, home, **asked)
    done = subprocess.run(command, input=given, capture_output=True, timeout=60, env={"LANG": "C.UTF-8"})
    lines = done.stderr.decode().splitlines()
    assert all(line.startswith("{") for line in lines), done.stderr.decode()
    return Done(done.stdout, [json.loads(line) for line in lines])


def started(module: str, home: Path, **asked: Any) -> subprocess.Popen[bytes]:
    """The same, not waited for: nobody reads yet what it writes."""
    pipe = subprocess.PIPE
    return subprocess.Popen(_command(module, home, **asked), stdin=pipe, stdout=pipe, stderr=pipe)


def pack(home: Path, format: str = "tar", **asked: Any) -> Done:
    return script("archives.pack", home, format=format, **asked)


def unpack(home: Path, archive: bytes, format: str = "tar", **asked: Any) -> Done:
    return script("archives.unpack", home, archive, format=format, **asked)
