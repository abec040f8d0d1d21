"""examples/ against a real server, with the real third-party package."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from stack import ROOT, Stack

pytestmark = pytest.mark.timeout(400)


def run(python: str, example: str, stack: Stack) -> str:
    env = {"SANDBOX_URL": stack.url, "SANDBOX_API_KEY": stack.key, "PATH": "/usr/bin:/bin"}
    command = [python, str(ROOT / "examples" / example)]
    return subprocess.run(command, env=env, check=True, capture_output=True, text=True, timeout=120).stdout


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An environment of its own, as somebody who only uses the client has."""
    place = tmp_path_factory.mktemp("examples")
    subprocess.run([sys.executable, "-m", "venv", place], check=True, timeout=120)
    chosen = str(Path(place, "bin", "python"))
    packages = ["requests", "langgraph"]
    subprocess.run([chosen, "-m", "pip", "install", "-q", *packages], check=True, timeout=300)
    library = next(Path(place, "lib").glob("python*/site-packages"))
    (library / "sandbox_client.pth").write_text(str(ROOT / "client"))
    return chosen


def test_the_first_example_shows_what_it_says(python: str, stack: Stack) -> None:
    assert "STILL HERE, AFTER THE TIMEOUT" in run(python, "basic.py", stack)


def test_the_streaming_example_shows_what_it_says(python: str, stack: Stack) -> None:
    said = run(python, "streaming.py", stack)
    assert "stdout: step 1\nstdout: step 2\nstdout: step 3\nstderr: oops\nexit code 3\n" in said
    assert "its log so far: hello, Ada\ncancelled: True\n" in said


def test_the_example_with_files_shows_what_it_says(python: str, stack: Stack) -> None:
    said = run(python, "files.py", stack)
    assert "total.txt says 42\nlost: data/sales.csv\nundone: ['artifacts', 'data', 'total.py']\n" in said
    assert "in the fork: 100\nhere still: 42\ndownloaded: ['sales.csv']\n" in said


def test_the_agent_on_langgraph_mends_its_own_mistake(python: str, stack: Stack) -> None:
    said = run(python, "langgraph_agent.py", stack)
    assert "NameError" in said
    assert "\n43\n47\n" in said
