"""quickstart.sh where nothing is installed: what it says, and that it leaves nothing behind."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from expect import eventually

from tests.e2e.installation import ROOT, Place, new_place, run

NOBODY = 65534


@pytest.fixture
def place() -> Iterator[Place]:
    """A place where nothing is installed."""
    with new_place() as place:
        yield place


def test_help_names_every_command(place: Place) -> None:
    """--help lists the commands and the settings, and touches nothing."""
    answer = place.run("--help")
    assert answer.code == 0
    for word in (
        "start",
        "--foreground",
        "status",
        "stop",
        "uninstall",
        "test",
        "SANDBOX_STATE_DIR",
        "QUICKSTART_VENV",
    ):
        assert word in answer.out
    assert not place.state.exists()


def test_an_unknown_command_points_at_help(place: Place) -> None:
    answer = place.run("restart-everything")
    assert answer.code == 1
    assert "Unknown command: restart-everything" in answer.err
    assert "--help" in answer.err


def test_status_and_stop_of_nothing(place: Place) -> None:
    """Nothing runs: status says so with exit code 3, stop and uninstall have nothing to do."""
    status = place.run("status")
    assert (status.code, "keeper: stopped" in status.out) == (3, True)
    assert place.run("stop").code == 0
    assert place.run("uninstall").code == 0
    assert not place.state.exists()


def test_a_port_in_use_is_told_before_anything_else(place: Place) -> None:
    """The message names the port and how to choose another one, and no minutes are spent first."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        answer = place.run(SANDBOX_BIND=f"127.0.0.1:{port}")
    assert answer.code == 1
    assert f"Port {port} on 127.0.0.1 is in use" in answer.err
    assert "SANDBOX_BIND=" in answer.err
    assert answer.seconds < 10


def test_an_engine_that_does_not_answer(place: Place) -> None:
    """A wrong DOCKER_HOST is named; no engine is installed or started instead of it."""
    answer = place.run(DOCKER_HOST="unix:///nonexistent/docker.sock")
    assert answer.code == 1
    assert "No Docker Engine answers at unix:///nonexistent/docker.sock" in answer.err
    assert "DOCKER_HOST" in answer.err.partition("->")[2]


def test_a_full_disk(place: Place) -> None:
    answer = place.run(QUICKSTART_MIN_FREE_MB="999999999")
    assert answer.code == 1
    assert "The disk is nearly full" in answer.err
    assert "Make room" in answer.err


def test_a_malformed_address(place: Place) -> None:
    answer = place.run(SANDBOX_BIND="somewhere")
    assert answer.code == 1
    assert "SANDBOX_BIND must be HOST:PORT" in answer.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_takes_along_what_it_started(place: Place, number: signal.Signals) -> None:
    """Also what `timeout` has put into a process group of its own: here pip."""
    quickstart = [str(ROOT / "quickstart.sh")]
    with subprocess.Popen(quickstart, env=place.env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        while "Install Python packages" not in process.stdout.readline():
            assert process.poll() is None
        eventually(lambda: any(command.startswith("timeout") for command in running_for(place)))
        process.send_signal(number)
        assert process.wait(timeout=30) == 128 + number
    assert running_for(place) == []


STEP = """
set -euo pipefail
OWN=$1 LOG=$1/log STEP_PID=
touch "$LOG"
. scripts/say.sh
trap end_step EXIT
trap 'exit 143' TERM
work() { timeout 60 sh -c "touch $OWN/begun; sleep 2; touch $OWN/finished"; }
MUST_FINISH=$2 step Work work
"""


@pytest.mark.parametrize(("must_finish", "finished"), [("apt-get install x", True), ("", False)])
def test_an_interrupted_apt_may_finish_first(tmp_path: Path, must_finish: str, finished: bool) -> None:
    """A package that was cut off keeps every later one from being installed."""
    command = ["bash", "-c", STEP, "step", str(tmp_path), must_finish]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as process:
        eventually((tmp_path / "begun").exists)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 143
    assert (tmp_path / "finished").exists() == finished


def running_for(place: Place) -> list[str]:
    """The commands of all processes whose environment names this installation."""
    found, ours = [], f"SANDBOX_STATE_DIR={place.state}\0".encode()
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and ours in (entry / "environ").read_bytes():
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return [command for command in found if command]  # a zombie has none


@pytest.mark.skipif(os.getuid() != 0, reason="only root can play another user")
def test_no_right_to_the_docker_socket(place: Place) -> None:
    """A user outside the group docker is told which command, as root, lets them in."""
    shutil.copy(ROOT / "quickstart.sh", place.dir)
    shutil.copytree(ROOT / "scripts", place.dir / "scripts")
    home = place.dir / "home"
    home.mkdir()
    os.chown(home, NOBODY, NOBODY)
    env = place.env | {"SANDBOX_STATE_DIR": str(home / "state"), "HOME": str(home)}
    answer = run([str(place.dir / "quickstart.sh")], env, user=NOBODY)
    assert answer.code == 1
    assert "You may not use the Docker socket" in answer.err
    assert "usermod -aG docker" in answer.err
