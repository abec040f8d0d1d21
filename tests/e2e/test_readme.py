"""README.md and docs/ cannot rot: commands are run, snippets give what they say, links lead somewhere."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest
from stack import Stack

from server.api.answers import ExecutionAnswer, Result, SessionAnswer, TicketAnswer
from server.api.describe import description
from server.api.models import Execute, Input, NewTicket, OpenTerminal, Screen, Signal
from server.api.problems import STATUSES
from server.api.session_models import CreateSession
from server.app import build
from server.config import Config, load
from tests.e2e.installation import ROOT

README = (ROOT / "README.md").read_text()
PAGES = [
    ROOT / "README.md",
    ROOT / "SECURITY.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
API = (ROOT / "docs" / "api.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.M | re.S)


@pytest.fixture
def home(stack: Stack, tmp_path: Path) -> Iterator[dict[str, str]]:
    """An environment in which quickstart's credentials lie where README says."""
    place = tmp_path / ".config" / "sandbox"
    place.mkdir(parents=True)
    (place / "credentials.json").write_text(json.dumps({"url": stack.url, "api_key": stack.key}))
    dropped = ("SANDBOX_", "XDG_")
    env = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    yield env | {"HOME": str(tmp_path), "PYTHONPATH": str(ROOT / "client")}
    stack.close_sessions()


def bash(script: str, stack: Stack, env: dict[str, str]) -> str:
    """As it stands, but for the port and the virtual environment of this test."""
    script = script.replace("localhost:5000", f"127.0.0.1:{stack.port}")
    script = script.replace(".venv/bin/python", sys.executable)
    script = script.replace(".venv/bin/sandbox", f"{sys.executable} -m sandbox_client.cli")
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        env=env,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_is_short() -> None:
    assert len(README.splitlines()) < 150


def test_the_python_block_gives_the_stated_output(home: dict[str, str]) -> None:
    (code,), (output,) = blocks("python"), blocks("text")
    done = subprocess.run(
        [sys.executable, "-c", code], env=home, cwd="/", capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr) == (output, "")


def test_the_shell_blocks_work(stack: Stack, home: dict[str, str]) -> None:
    """The first one is quickstart itself, which test_quickstart.py runs; the others are run here."""
    first, example, curl = blocks("sh")
    assert bash(example, stack, home).endswith("hello from Linux\nexit code 3\n")
    executed, closed = bash(curl, stack, home).splitlines()
    assert json.loads(executed)["output"] == "hello from user\n"
    assert json.loads(closed)["status"] == "closed"
    assert [line.split("#")[0].strip() for line in first.splitlines()] == [
        "./quickstart.sh",
        "./quickstart.sh test",
    ]
    assert (ROOT / ".ci" / "run").read_text().rstrip().endswith("./quickstart.sh test")


def test_every_command_of_quickstart_that_is_named_exists() -> None:
    told = subprocess.run(
        [ROOT / "quickstart.sh", "--help"], capture_output=True, text=True, timeout=60
    ).stdout
    for page in PAGES:
        for command in re.findall(r"\./quickstart\.sh (--)?([a-z]+)\b", page.read_text()):
            assert re.search(rf"^  (.*\b)?{''.join(command)}\b", told, re.M), (page.name, command)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if target.startswith(("http://", "https://")):
            continue
        name, _, anchor = target.partition("#")
        found = (page.parent / name).resolve() if name else page
        assert found.exists(), target
        if anchor:
            assert anchor in anchors(found), target


def anchors(page: Path) -> set[str]:
    """As GitHub makes them from headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_and_test_that_is_named_exists(page: Path) -> None:
    last = ""
    for path, test in re.findall(
        r"`([\w./-]*/[\w.-]+\.(?:py|sh|json|conf|service|example))?(?:::(test_\w+))?`", page.read_text()
    ):
        last = path or last
        if path and not path.startswith("/"):
            assert (ROOT / path).exists(), path
        if test:
            assert re.search(rf"^def {test}\(", (ROOT / last).read_text(), re.M), f"{last}::{test}"


def test_every_setting_is_documented_as_it_is() -> None:
    """docs/configuration.md has one row for each, with its default and meaning."""
    page = (ROOT / "docs" / "configuration.md").read_text()
    rows = re.findall(r"^\| `(SANDBOX_\w+)` \| (.*?) \| (.*) \|$", page, re.M)
    expected = [
        (
            f"SANDBOX_{one.name.upper()}",
            f"`{default}`" if (default := one.metadata["default"]) else "empty",
            one.metadata["meaning"],
        )
        for one in fields(Config)
    ]
    assert sorted(rows) == sorted(expected)


def test_every_problem_is_documented() -> None:
    """docs/api.md has one row for each code, with its status."""
    rows = re.findall(r"^\| `([a-z_]+)` \| (\d{3}) \|", API, re.M)
    assert {code: int(status) for code, status in rows} == STATUSES


def test_every_path_is_documented(stack: Stack) -> None:
    described = description(build(load({"SANDBOX_STATE_DIR": stack.env["SANDBOX_STATE_DIR"]})))["paths"]
    assert described
    for path, operations in described.items():
        for method in operations:
            assert f"{method.upper()} {path}`" in API, (method, path)


def test_every_field_is_documented() -> None:
    requests = (CreateSession, Execute, Signal, Input, Screen, NewTicket, OpenTerminal)
    for model in (*requests, SessionAnswer, Result, ExecutionAnswer, TicketAnswer):
        for name, field in model.model_fields.items():
            word = re.escape(field.alias or name)
            assert re.search(rf'[`"{{ ]{word}["`]', API), (model.__name__, name)
