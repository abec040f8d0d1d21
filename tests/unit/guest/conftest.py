"""A guest for each test, bound to a user, or not yet bound."""

from __future__ import annotations

import compileall
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from guest_files import Files
from guest_process import ROOT, GuestProcess, public_directory


@pytest.fixture(scope="session")
def guest_code() -> Iterator[Path]:
    """A copy of the guest, as the image has one: the commands' user need not be able to read this project."""
    place = public_directory("guest-code-")
    place.chmod(0o755)  # modules are looked for in it by scripts that run as the user
    shutil.copytree(ROOT / "server" / "guest", place / "guest")
    compileall.compile_dir(place, quiet=1)
    yield place
    shutil.rmtree(place)


@pytest.fixture(scope="session")
def guests(guest_code: Path) -> Iterator[Iterator[GuestProcess]]:
    """Started one ahead: the next guest starts while a test uses the one before."""
    made = [GuestProcess(guest_code)]

    def each() -> Iterator[GuestProcess]:
        while True:
            made.append(GuestProcess(guest_code))
            yield made[-2]

    yield each()
    made[-1].stop()


@pytest.fixture
def unbound(guests: Iterator[GuestProcess]) -> Iterator[GuestProcess]:
    guest = next(guests)
    guest.await_socket()
    try:
        yield guest
    finally:
        guest.stop()


@pytest.fixture
def guest(unbound: GuestProcess) -> GuestProcess:
    unbound.bind()
    return unbound


@pytest.fixture
def files(guest: GuestProcess) -> Files:
    return Files(guest)
