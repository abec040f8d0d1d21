"""Leftovers of earlier versions on this host, which must not stay."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from server.keeper.doctor import CRITICAL, MAJOR, MINOR, Finding, judged
from server.keeper.volumes import FILES, OWNER

_UNIT = "etc/systemd/system/sandbox-keeper.service"
_SYSCTLS = "etc/sysctl.d/60-sandbox-server.conf"


def examine(root: Path, volumes: Path) -> Iterator[Finding]:
    owning = re.search(r"^StateDirectory=", _text(root / _UNIT), re.M) is not None
    yield judged(
        "leftovers.unit",
        not owning,
        CRITICAL,
        "StateDirectory in the keeper's unit: at each start systemd may take the files of workspaces away"
        if owning
        else "the keeper's unit owns no directory",
        "no StateDirectory",
        "install -m 0644 deploy/sandbox-*.service /etc/systemd/system/ && systemctl daemon-reload",
    )
    foreign = [place.parent.name for place in volumes.glob(f"*/{FILES}") if place.lstat().st_uid != OWNER]
    yield judged(
        "leftovers.owners",
        not foreign,
        MAJOR,
        f"{len(foreign)} volumes with another owner: {', '.join(sorted(foreign)[:3])}",
        f"uid {OWNER} owns what is in a volume",
        f"with the keeper stopped: find {volumes}/*/{FILES} -uid 0 -exec chown -h {OWNER}:{OWNER} {{}} +",
    )
    there = (root / _SYSCTLS).exists()
    yield judged(
        "leftovers.sysctls",
        not there,
        MINOR,
        f"/{_SYSCTLS} lowers what the distribution has higher" if there else "none",
        "no such file",
        f"rm /{_SYSCTLS}, then reboot: the keeper's unit raises what is too low",
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
