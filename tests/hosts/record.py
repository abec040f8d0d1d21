"""The hosts that were tested: facts by lane, in a file of the doctor's and in a table of docs/operations.md.

Nothing is written unless RECORD_HOSTS=1 is set: an ordinary run leaves the checkout as it was.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HOSTS = Path("server/keeper/doctor/tested_hosts.json")
PAGE = Path("docs/operations.md")
BEGIN, END = "<!-- tested hosts: begin -->", "<!-- tested hosts: end -->"
HEAD = "| lane | distribution | kernel | engine | cgroup | OCI runtime | systemd | date |"

# Six lines, in the order of Facts. The engine is the one that the docker command reaches.
ASK = """
docker info --format '{{.OperatingSystem}}'
uname -r | cut -d . -f 1,2
docker info --format '{{.ServerVersion}}
v{{.CgroupVersion}}'
runc --version | sed -n 's/version //; 1p'
if [ -d /run/systemd/system ]; then echo yes; else echo no; fi
"""


@dataclass(frozen=True)
class Facts:
    """What a host is, in words for the table."""

    distribution: str
    kernel: str
    engine: str
    cgroup: str
    oci_runtime: str
    systemd: str


def run_here(script: str) -> str:
    """The output of a shell script on this machine."""
    command = ["bash", "-euo", "pipefail", "-c", script]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


def observe(run: Callable[[str], str] = run_here) -> Facts:
    """The facts of the host on which `run` runs shell scripts."""
    return Facts(*run(ASK).strip().splitlines())


def record(lane: str, facts: Facts, root: Path = ROOT) -> None:
    """Replace what is known of a lane, in the JSON file and in the table if RECORD_HOSTS=1 asks for it."""
    if os.environ.get("RECORD_HOSTS") != "1":
        return
    path = root / HOSTS
    known = json.loads(path.read_text())
    today = datetime.now(timezone.utc).date().isoformat()
    entry = {"lane": lane, **asdict(facts), "date": today}
    hosts = sorted([old for old in known if old["lane"] != lane] + [entry], key=lambda host: host["lane"])
    path.write_text(json.dumps(hosts, indent=1) + "\n")
    page = root / PAGE
    page.write_text(with_table(page.read_text(), hosts))


def with_table(text: str, hosts: list[dict[str, str]]) -> str:
    """The page with the table of these hosts between its two marks."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    rows = ["| " + " | ".join([f"`{host['lane']}`", *list(host.values())[1:]]) + " |" for host in hosts]
    table = "\n".join([HEAD, "|" + "---|" * (HEAD.count("|") - 1), *rows])
    return f"{before}{BEGIN}\n{table}\n{END}{after}"
