"""Sleeping sessions and sandboxes for one command, as the clients and the program know them."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from expect import eventually
from sandbox_client import AsyncSandboxClient, CommandFailed, SandboxClient, SessionEnded
from sandbox_client.errors import ConfigurationError
from stack import ROOT, Stack

PROGRAM = [sys.executable, "-m", "sandbox_client.cli"]


def program(stack: Stack, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    own = {"PYTHONPATH": str(ROOT / "client"), "SANDBOX_URL": stack.url, "SANDBOX_API_KEY": stack.key}
    options = {"env": {**os.environ, **own}, "capture_output": True, "text": True, "timeout": 60, **options}
    if "input" not in options:
        options["stdin"] = subprocess.DEVNULL
    return subprocess.run([*PROGRAM, *words], **options)


def test_a_client_pauses_and_resumes_its_sandbox(sandbox: SandboxClient) -> None:
    sandbox.execute("cd /tmp; export greeting=hello")
    for cold, state in ((False, "paused"), (True, "cold")):
        told = sandbox.pause(cold=cold)
        assert (told.state, told.state_reason) == (state, "asked")
        assert told.state_since is not None and told.created_at is not None
        assert told.state_since >= told.created_at
        assert sandbox.state() == state
        assert sandbox.execute("echo $greeting; pwd").output == "hello\n/tmp\n"
        assert sandbox.state() == "running"
    sandbox.pause()
    assert sandbox.resume().state == "running"


def test_one_command_in_a_sandbox_as_the_client_would_have_it(stack: Stack, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("uploaded\n")
    client = stack.client(env={"NAME": "Ada", "OTHER": "1"}, files=[tmp_path / "notes.txt"], memory="128m")
    result = client.run_once("cat notes.txt -; echo $NAME $OTHER", stdin="in\n", env={"OTHER": "2"})
    assert result.stdout == "uploaded\nin\nAda 2\n"
    assert client.run_once("1 + 1", language="python").value == "2"
    with pytest.raises(CommandFailed):
        client.run_once(["false"], check=True)
    with pytest.raises(SessionEnded) as error:
        SandboxClient.attach(result.session_id, url=stack.url, api_key=stack.key).info()
    assert error.value.cause == "spent"


def test_an_ephemeral_client_runs_one_command(stack: Stack) -> None:
    with stack.client(ephemeral=True) as sandbox:
        sandbox.files.write("main.py", "print('hello')")
        with pytest.raises(ConfigurationError):
            sandbox.execute("true", on_stdout=print)
        assert sandbox.execute("python3 main.py").output == "hello\n"
        with pytest.raises(SessionEnded):
            sandbox.execute("true")
    with stack.client(ephemeral=True) as sandbox:
        assert "".join(event.text for event in sandbox.stream("echo one; echo two")) == "one\ntwo\n"


def test_the_same_with_await(stack: Stack) -> None:
    async def use() -> None:
        async with AsyncSandboxClient(url=stack.url, api_key=stack.key) as sandbox:
            await sandbox.execute("cd /tmp")
            assert (await sandbox.pause(cold=True)).state == "cold"
            assert await sandbox.state() == "cold"
            assert (await sandbox.resume()).state == "running"
            assert (await sandbox.execute("pwd")).output == "/tmp\n"
            assert (await sandbox.run_once("echo once")).output == "once\n"

    asyncio.run(use())


def test_the_program_pauses_and_resumes(stack: Stack, sandbox: SandboxClient) -> None:
    for words, state in ((("pause",), "paused"), (("pause", "--cold"), "cold"), (("resume",), "running")):
        assert program(stack, *words, sandbox.session_id).returncode == 0
        assert sandbox.state() == state
        rows = program(stack, "ls").stdout.splitlines()
        assert next(row for row in rows if sandbox.session_id in row).split()[3] == state
    assert program(stack, "pause", "0" * 32).returncode == 1


def test_the_program_runs_a_command_in_an_ephemeral_session(stack: Stack) -> None:
    done = program(stack, "run", "--ephemeral", "cat; echo err >&2; exit 3", input="in\n")
    assert (done.stdout, done.stderr, done.returncode) == ("in\n", "err\n", 3)
    assert program(stack, "run", "--ephemeral", "echo", "$HOME").stdout == "$HOME\n"
    assert program(stack, "run", "--ephemeral", "--user", "ada", "true").returncode == 2
    eventually(lambda: all(not one.ephemeral for one in stack.client().list_sessions()))
