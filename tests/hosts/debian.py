"""Packages of another Debian release, unpacked into a directory: nothing of this machine's is changed.

As a program: debian.py RELEASE DIRECTORY PACKAGE... unpacks them into DIRECTORY/root.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_SECONDS = 300


class NotToBeHad(Exception):
    """The packages could not be downloaded. Check the network and the machine's apt."""


class Release:
    """One of Debian's, with apt's lists of its own below `place`."""

    def __init__(self, name: str, place: Path) -> None:
        self._place = place / name
        self._options = _options(self._place)
        (self._place / "lists" / "partial").mkdir(parents=True, exist_ok=True)
        (self._place / "sources.list").write_text(f"deb {mirror()} {name} main\n")
        self._run("apt-get", *self._options, "update")

    def version_of(self, package: str) -> str:
        told = self._run("apt-cache", *self._options, "show", "--no-all-versions", package)
        match = re.search(r"^Version: (?:\d+:)?([\d.]+)", told, re.M)
        if match is None:
            raise NotToBeHad(f"{package} has no version")
        return match[1]

    def unpack(self, packages: Sequence[str]) -> Path:
        """The newest version of each. The directory that holds the files."""
        root = self._place / "root"
        self._run("apt-get", *self._options, "download", *packages)
        for package in self._place.glob("*.deb"):
            self._run("dpkg-deb", "--extract", str(package), str(root))
            package.unlink()
        return root

    def _run(self, *command: str) -> str:
        return _run(command, self._place)


def mirror() -> str:
    """The one that this machine's apt uses, unless another is named."""
    if named := os.environ.get("QUICKSTART_DEBIAN_MIRROR"):
        return named
    wanted = ("--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)", "Created-By: Packages")
    for line in _run(("apt-get", "indextargets", *wanted), Path("/")).splitlines():
        site, release, component = line.split()
        if component == "main" and "-" not in release:
            return site.rstrip("/")
    raise NotToBeHad("apt knows no mirror of Debian: name one in QUICKSTART_DEBIAN_MIRROR")


def _options(place: Path) -> list[str]:
    options = {
        "Dir::Etc::SourceList": place / "sources.list",
        "Dir::Etc::SourceParts": "-",
        "Dir::State::Lists": place / "lists",
        "Dir::Cache::pkgcache": "",
        "Dir::Cache::srcpkgcache": "",
        "APT::Sandbox::User": "root",
        "Acquire::Languages": "none",
        "Acquire::Retries": "3",
        "Acquire::http::Timeout": "30",
    }
    return [word for name, value in options.items() for word in ("-o", f"{name}={value}")]


def _run(command: Sequence[str], place: Path) -> str:
    try:
        done = subprocess.run(
            command, cwd=place, check=True, capture_output=True, text=True, timeout=_SECONDS
        )
    except subprocess.CalledProcessError as exc:
        raise NotToBeHad(f"{command[0]} {command[-1]}: {exc.stderr.strip()[-500:]}") from exc
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise NotToBeHad(f"{command[0]} {command[-1]}: {exc}") from exc
    return done.stdout


if __name__ == "__main__":
    try:
        print(Release(sys.argv[1], Path(sys.argv[2])).unpack(sys.argv[3:]))
    except NotToBeHad as exc:
        sys.exit(f"error: {exc}")
