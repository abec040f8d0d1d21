"""The `sandbox` program against a real server: as a process in a pipe, and as a person at a terminal."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pexpect
import pytest
from cutting_proxy import cutting
from sandbox_client import SandboxClient
from stack import ROOT, Stack, running

PROGRAM = [sys.executable, "-m", "sandbox_client.cli"]
NUMBERS = itertools.count()
Run = Callable[..., "subprocess.CompletedProcess[bytes]"]


@pytest.fixture
def environment(stack: Stack) -> dict[str, str]:
    return environment_of(stack)


def environment_of(stack: Stack, url: str | None = None) -> dict[str, str]:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("SANDBOX_")}
    path = str(ROOT / "client")
    own = {"PYTHONPATH": path, "SANDBOX_URL": url or stack.url, "SANDBOX_API_KEY": stack.key}
    return {**plain, **own, "TERM": "xterm", "PS1": ""}


@pytest.fixture
def cli(environment: dict[str, str]) -> Run:
    def call(*args: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
        options = {"stdin": subprocess.DEVNULL, "env": environment, "timeout": 60, **options}
        return subprocess.run([*PROGRAM, *args], capture_output=True, **options)

    return call


def sessions(stack: Stack) -> list[str]:
    return [one["session_id"] for one in stack.call("GET", "/v1/sessions?limit=1000").json()["sessions"]]


class Terminal:
    """A person at a terminal."""

    def __init__(self, environment: dict[str, str], *args: str, size: tuple[int, int] = (90, 30)) -> None:
        dimensions = (size[1], size[0])
        self.it = pexpect.spawn(
            PROGRAM[0], [*PROGRAM[1:], "shell", *args], env=environment, dimensions=dimensions, timeout=20
        )
        self.it.delaybeforesend = None
        self.ready()

    def ready(self) -> None:
        """A prompt has come: what is typed now is typed at bash."""
        self.expect(r"[$#] ")

    def type(self, keys: str) -> None:
        self.it.send(keys)

    def expect(self, pattern: str) -> str:
        self.it.expect(pattern)
        return str(self.it.match.group(0).decode())

    def ask(self, command: str) -> str:
        """What a command prints, told by marks that neither its echo has nor an earlier answer."""
        number = next(NUMBERS)
        self.type(f"echo fr''om{number}; {command}; echo t''o{number}\r")
        self.it.expect(rf"(?s)from{number}\r\n(.*?)to{number}\r\n")
        return str(self.it.match.group(1).decode()).replace("\r\n", "\n")

    def left(self) -> int:
        """Its exit code, after the end."""
        self.it.expect(pexpect.EOF)
        self.it.wait()
        return int(self.it.exitstatus)


@pytest.fixture
def sat_down(environment: dict[str, str]) -> Iterator[Callable[..., Terminal]]:
    made: list[Terminal] = []

    def sit_down(*args: str, env: dict[str, str] | None = None, **options: Any) -> Terminal:
        made.append(Terminal(env or environment, *args, **options))
        return made[-1]

    yield sit_down
    for terminal in made:
        terminal.it.close(force=True)


def test_run_is_like_running_it_here(stack: Stack, cli: Run) -> None:
    before = sessions(stack)
    done = cli("run", "echo out; echo err >&2; printf '\\377'; exit 7")
    assert (done.stdout, done.stderr, done.returncode) == (b"out\n\xff", b"err\n", 7)
    assert sessions(stack) == before, "a fresh session is closed afterwards"


def test_run_takes_a_program_with_arguments(cli: Run) -> None:
    done = cli("run", "--env", "A=b c", "--cwd", "/tmp", "bash", "-c", 'echo "$A|$PWD|$1"', "x", "a  b*")
    assert done.stdout == b"b c|/tmp|a  b*\n"


def test_run_in_a_session_shares_its_shell(cli: Run, sandbox: SandboxClient) -> None:
    cli("run", "--session", sandbox.session_id, "cd /tmp; x=5")
    assert cli("run", "--session", sandbox.session_id, "echo $PWD $x").stdout == b"/tmp 5\n"


def test_a_users_session_stays(stack: Stack, cli: Run) -> None:
    cli("run", "--user", "ada", "echo kept > file")
    assert cli("run", "--user", "ada", "cat file").stdout == b"kept\n"
    [session_id] = cli("ls", "-q", "--user", "ada").stdout.decode().split()
    assert cli("kill", session_id).returncode == 0
    assert session_id not in sessions(stack)


def test_stdin_of_a_pipe_is_passed_on(cli: Run) -> None:
    data = os.urandom(3 << 20)
    done = cli("run", "sleep 0.5; cat", stdin=None, input=data)
    assert done.stdout == data and done.returncode == 0


def test_stdin_of_a_file_is_passed_on(cli: Run, tmp_path: Path) -> None:
    (tmp_path / "words").write_bytes(b"one\ntwo\n")
    with (tmp_path / "words").open("rb") as words:
        assert cli("run", "wc -l", stdin=words).stdout.strip() == b"2"


def test_a_command_that_does_not_read_does_not_wait_for_stdin(environment: dict[str, str]) -> None:
    process = subprocess.Popen(
        [*PROGRAM, "run", "echo done"], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.wait(timeout=30) == 0
    assert process.stdout is not None and process.stdin is not None
    assert process.stdout.read() == b"done\n"
    process.stdout.close()
    process.stdin.close()


def test_output_comes_while_it_runs(environment: dict[str, str]) -> None:
    process = subprocess.Popen(
        [*PROGRAM, "run", "echo one; sleep 600"],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None and process.stdout.readline() == b"one\n"
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert (process.returncode, said) == (130, b"")


def test_ctrl_c_kills_the_command_in_a_session_that_stays(
    environment: dict[str, str], sandbox: SandboxClient
) -> None:
    process = subprocess.Popen(
        [*PROGRAM, "run", "--session", sandbox.session_id, "echo one; sleep 601; touch done"],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None and process.stdout.readline() == b"one\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=30) == 130
    process.stdout.close()
    assert sandbox.execute("pgrep -f 'sleep 60[1]'; test -e done").exit_code == 1


def test_a_reader_that_goes_away_ends_the_command(
    environment: dict[str, str], sandbox: SandboxClient
) -> None:
    words = f"{' '.join(PROGRAM)} run --session {sandbox.session_id} yes | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", words], env=environment, capture_output=True, timeout=60)
    assert (done.stdout, done.stderr) == (b"y\n141\n", b"")
    assert sandbox.execute("pgrep -x yes").exit_code == 1


def test_a_timeout_is_told(cli: Run) -> None:
    done = cli("run", "--timeout", "0.5", "echo begun; sleep 60")
    assert (done.stdout, done.returncode) == (b"begun\n", 124)
    assert b"timed out" in done.stderr


def test_a_session_that_is_not_there_is_125_for_run_and_1_elsewhere(cli: Run) -> None:
    nowhere = "0" * 32
    assert cli("run", "--session", nowhere, "true").returncode == 125
    for words in (("ps", nowhere), ("kill", nowhere)):
        done = cli(*words)
        assert done.returncode == 1 and done.stderr.count(b"\n") == 1


def test_ls_and_ps_and_kill(cli: Run, sandbox: SandboxClient) -> None:
    execution = sandbox.start(["sleep", "600"])
    assert sandbox.session_id in cli("ls").stdout.decode()
    assert sandbox.session_id in [one["session_id"] for one in json.loads(cli("ls", "--json").stdout)]
    table = cli("ps", sandbox.session_id).stdout.decode()
    assert re.search(rf"^{execution.id} +running .*sleep.*600", table, re.MULTILINE)
    assert cli("kill", sandbox.session_id, execution.id).returncode == 0
    assert execution.wait(timeout=5).cancelled
    assert json.loads(cli("ps", sandbox.session_id, "--json").stdout)[0]["status"] == "ended"


def test_files_are_copied_both_ways(
    environment: dict[str, str], cli: Run, sandbox: SandboxClient, tmp_path: Path
) -> None:
    here, there = {"cwd": str(tmp_path)}, sandbox.session_id
    (tmp_path / "project" / "src").mkdir(parents=True)
    (tmp_path / "project" / "src" / "a.txt").write_bytes(os.urandom(5 << 20))
    shown, code = pexpect.run(
        f"{' '.join(PROGRAM)} cp project {there}:", env=environment, withexitstatus=True, timeout=30, **here
    )
    assert code == 0 and re.search(rb"project  \[#+-*\] +\d+%  [\d.]+M/5M  [\d.]+M/s", shown)
    assert cli("cp", f"{there}:project/src/a.txt", "b.txt", **here).returncode == 0
    assert cli("cp", "b.txt", f"{there}:", **here).returncode == 0 and sandbox.files.exists("b.txt")
    assert cli("files", "rm", f"{there}:b.txt").returncode == 0
    assert (tmp_path / "b.txt").read_bytes() == (tmp_path / "project" / "src" / "a.txt").read_bytes()
    assert cli("cp", "-", f"{there}:in", stdin=None, input=b"piped").stdout == b""
    assert cli("cp", f"{there}:in", "-").stdout == cli("files", "cat", f"{there}:in").stdout == b"piped"
    assert cli("cp", f"{there}:project", "back", **here).stderr == b""
    assert (tmp_path / "back" / "src" / "a.txt").stat().st_size == 5 << 20
    assert cli("files", "rm", "-r", f"{there}:project").returncode == 0
    assert [one["name"] for one in json.loads(cli("files", "ls", "--json", f"{there}:").stdout)] == ["in"]
    missing = cli("cp", f"{there}:nothing", "x", **here)
    assert (missing.returncode, missing.stderr.count(b"\n")) == (1, 1)


def test_snapshots_forks_and_undo(cli: Run, stack: Stack, sandbox: SandboxClient) -> None:
    there = sandbox.session_id
    sandbox.files.write("state", "1")
    taken = cli("snapshot", there, "--name", "good").stdout.decode().strip()
    assert [one["name"] for one in json.loads(cli("snapshots", there, "--json").stdout)] == ["good"]
    sandbox.files.write("state", "2")
    [copy] = cli("fork", there).stdout.decode().split()
    assert cli("restore", there, taken).returncode == 0 and sandbox.files.read("state") == b"1"
    assert cli("files", "cat", f"{copy}:state").stdout == b"2" and cli("kill", copy).returncode == 0
    assert cli("run", "--snapshot", taken, "--workspace", "cli-kept", "cat state").stdout == b"1"
    assert b"cli-kept" in cli("workspaces").stdout
    assert cli("workspaces", "--delete", "cli-kept").returncode == 0
    assert cli("undo", there).returncode == 1, "without checkpoints there is nothing to go back to"
    assert cli("snapshots", "--delete", taken).returncode == 0
    assert taken not in cli("snapshots", "-q").stdout.decode()


def test_a_shell_works_as_at_a_terminal(stack: Stack, sat_down: Callable[..., Terminal]) -> None:
    before = sessions(stack)
    terminal = sat_down()
    assert terminal.ask("echo grün $((6 * 7))") == "grün 42\n"
    assert terminal.ask("tty | cut -c1-9") == "/dev/pts/\n"
    assert terminal.ask("stty size") == "30 90\n"
    assert len(sessions(stack)) == len(before) + 1
    terminal.type("exit 5\r")
    assert terminal.left() == 5
    assert sessions(stack) == before


def test_a_shell_follows_the_size_of_the_window(sat_down: Callable[..., Terminal]) -> None:
    terminal = sat_down(size=(80, 24))
    assert terminal.ask("stty size") == "24 80\n"
    terminal.it.setwinsize(50, 132)
    until(lambda: terminal.ask("stty size") == "50 132\n")


def test_ctrl_c_goes_to_the_sandbox(sat_down: Callable[..., Terminal]) -> None:
    terminal = sat_down()
    terminal.type("echo be''gun; sleep 600\r")
    terminal.expect("begun\r\n")
    time.sleep(0.2)
    terminal.type("\x03")
    terminal.expect(r"\^C")
    terminal.type("echo co''de $?\r")
    terminal.expect("code 130\r\n")
    terminal.type("exit 0\r")
    assert terminal.left() == 0


def test_the_terminal_is_restored(sat_down: Callable[..., Terminal], sandbox: SandboxClient) -> None:
    """After the shell's end, after the escape, and after a signal."""
    for leave, code in ((None, 0), ("exit\r", 0), (signal.SIGTERM, 143), (signal.SIGHUP, 129)):
        terminal = sat_down("--session", sandbox.session_id, "--name", f"t{code}{leave is None:d}")
        raw = termios.tcgetattr(terminal.it.child_fd)
        assert not raw[3] & termios.ECHO and not raw[3] & termios.ISIG
        if isinstance(leave, str):
            terminal.type(leave)
        elif leave is None:
            terminal.type("\r")
            terminal.ready()
            terminal.type("~.")
        else:
            terminal.it.kill(leave)
        terminal.it.expect(pexpect.EOF)
        restored = termios.tcgetattr(terminal.it.child_fd)
        assert restored[3] & termios.ECHO and restored[3] & termios.ISIG, leave
        terminal.it.wait()
        assert terminal.it.exitstatus == code, leave


def test_a_shell_that_was_left_goes_on_and_can_be_joined_again(
    sat_down: Callable[..., Terminal], sandbox: SandboxClient
) -> None:
    terminal = sat_down("--session", sandbox.session_id)
    assert terminal.ask("x=kept; echo $x") == "kept\n"
    terminal.type("~.")
    assert terminal.left() == 0
    again = sat_down("--session", sandbox.session_id)
    assert again.ask('echo "still $x"') == "still kept\n"
    other = sat_down("--session", sandbox.session_id, "--name", "other")
    assert other.ask('echo "none: $x"') == "none: \n"


def test_a_shell_survives_a_cut_connection(
    stack: Stack, sat_down: Callable[..., Terminal], sandbox: SandboxClient
) -> None:
    """What the terminal prints while there is no connection is on the screen afterwards, and once."""
    with cutting(stack.port) as proxy:
        env = environment_of(stack, proxy.url)
        terminal = sat_down("--session", sandbox.session_id, env=env)
        terminal.type("for i in $(seq 1 30); do echo line-$i; sleep 0.1; done; echo o''ver\r")
        for number in (3, 9, 15):
            terminal.expect(f"line-{number}\r\n")
            proxy.cut()
        terminal.it.expect("over\r\n")
        shown = terminal.it.before.decode()
        assert re.findall(r"line-(\d+)\r\n", shown) == [str(number) for number in range(16, 31)]
        assert terminal.ask("echo alive") == "alive\n"


def test_a_shell_survives_a_restart_of_the_server() -> None:
    with running() as own, own.client() as sandbox:
        terminal = Terminal(environment_of(own), "--session", sandbox.session_id)
        try:
            assert terminal.ask("x=kept; echo $x") == "kept\n"
            own.kill("web")
            time.sleep(1)
            terminal.type("echo ty''ped $x\r")  # while nobody is there
            own.start_web()
            terminal.expect("typed kept\r\n")
        finally:
            terminal.it.close(force=True)
        own.wait_ready()


def test_a_shell_ends_with_its_session(sat_down: Callable[..., Terminal], stack: Stack) -> None:
    sandbox = stack.client()
    terminal = sat_down("--session", sandbox.session_id)
    terminal.ask("echo here")
    sandbox.close()
    assert terminal.left() in (125, 129, 137)
    assert b"Traceback" not in terminal.it.before


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.1)
