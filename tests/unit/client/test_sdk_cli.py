"""The `sandbox` program as a process of its own, against a server that plays a story."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sandbox_client.cli.keys import HELP, Escapes, Typed
from sandbox_client.cli.main import parser
from sdk_story import Fault, Story
from sdk_wire import KEY, SESSION

CLIENT = Path(__file__).resolve().parents[3] / "client"
PROGRAM = [sys.executable, "-m", "sandbox_client.cli"]


@pytest.fixture
def story():
    server = Story(("stdout", b"out\n"), ("stderr", b"err\n"), ("stdout", b"\xff\n"))
    yield server
    server.stop()


@pytest.fixture
def environment(story):
    plain = {name: value for name, value in os.environ.items() if not name.startswith("SANDBOX_")}
    return {**plain, "PYTHONPATH": str(CLIENT), "SANDBOX_URL": story.url, "SANDBOX_API_KEY": KEY}


@pytest.fixture
def sandbox(environment):
    def call(*args, **options):
        options = {"stdin": subprocess.DEVNULL, "env": environment, "timeout": 30, **options}
        return subprocess.run([*PROGRAM, *args], capture_output=True, **options)

    return call


def posted(story, part):
    return [body for method, path, body in story.seen if method == "POST" and path.endswith(part)]


def test_run_gives_output_and_exit_code_of_the_command(story, sandbox):
    done = sandbox("run", "make")
    assert (done.stdout, done.stderr, done.returncode) == (b"out\n\xff\n", b"err\n", 3)
    assert posted(story, "/executions")[0]["command"] == "make"
    assert story.asked("DELETE", "") == ["/v1/sessions/s1"], "a fresh session is closed"


def test_several_words_are_a_program_and_its_arguments(story, sandbox):
    options = ("--timeout", "5", "--cwd", "/tmp", "--env", "A=b=c", "--env", "D=")
    sandbox("run", *options, "ls", "-la", "--timeout", "x")
    [body] = posted(story, "/executions")
    assert (body["command"], body["shell"]) == (["ls", "-la", "--timeout", "x"], None)
    assert (body["timeout"], body["cwd"], body["env"]) == (5, "/tmp", {"A": "b=c", "D": ""})


def test_the_end_of_options_may_be_marked(story, sandbox):
    sandbox("run", "--", "ls", "-la")
    assert posted(story, "/executions")[0]["command"] == ["ls", "-la"]


def test_a_fresh_session_is_made_as_wished(story, sandbox):
    sandbox("run", "--image", "default", "--memory", "512m", "--cpus", "0.5", "true")
    assert posted(story, "/v1/sessions")[0] == {"image": "default", "memory": 2**29, "cpus": 0.5}


def test_another_session_is_used_and_left(story, sandbox):
    sandbox("run", "--session", "other", "true")
    assert story.seen[0][1] == "/v1/sessions/other/executions" and story.asked("DELETE", "") == []


def test_a_users_session_stays(story, sandbox):
    sandbox("run", "--user", "ada", "true")
    assert posted(story, "/v1/sessions") == [{"user_id": "ada"}] and story.asked("DELETE", "") == []


def test_stdin_of_a_pipe_is_passed_on(story, sandbox):
    story.faults = [Fault(after=200, how="silence"), Fault()]
    process = sandbox("run", "cat", stdin=None, input=b"some\xff")
    assert process.returncode == 3
    assert posted(story, "/executions")[0]["stdin"] == "pipe"
    assert posted(story, "/input") == [{"data_base64": "c29tZf8="}, {"close": True}]


def test_a_broken_connection_is_not_seen(story, sandbox):
    story.faults = [Fault(after=cut, how="reset") for cut in (180, 90)]
    assert sandbox("run", "make").stdout == b"out\n\xff\n"


def test_ctrl_c_kills_the_command(story, environment):
    story.faults = [Fault(after=230, how="silence")]
    process = subprocess.Popen(
        [*PROGRAM, "run", "--session", "s1", "make"],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout.readline() == b"out\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=10)
    assert process.returncode == 130 and b"Traceback" not in errors
    assert story.asked("DELETE", "/executions/")


def test_a_reader_that_goes_away_ends_it_quietly(story, environment):
    """As in `sandbox run yes | head -1`."""
    words = f"{' '.join(PROGRAM)} run --session s1 make | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", words], env=environment, capture_output=True, timeout=30, text=True)
    assert done.stderr in ("", "err\n")
    assert done.stdout.strip() in ("141", "3")  # what it wrote may have been in time


@pytest.mark.parametrize(("words", "codes"), [("ls -q", {1}), ("run --session s1 make", {125})])
def test_a_full_disk_is_told_in_a_line(story, environment, words, codes):
    story.script["sessions"] = [(200, {"sessions": [SESSION]})]
    script = f"{' '.join(PROGRAM)} {words} > /dev/full"
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, timeout=30)
    assert done.returncode in codes and b"cannot be written" in done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("words", ["ls -q", "run --session s1 make"])
def test_a_closed_stdout_is_quiet(story, environment, words):
    script = f"{' '.join(PROGRAM)} {words} >&-"
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, timeout=30)
    assert done.returncode in (0, 3) and done.stderr in (b"", b"err\n")


def test_ls_prints_a_table_json_or_ids(story, sandbox):
    page = {"sessions": [{**SESSION, "memory": 2**29, "user_id": "a\x1b[31mda"}], "next_cursor": None}
    story.script["sessions"] = [(200, page)] * 3
    table = sandbox("ls").stdout.decode().splitlines()
    assert table[0].split()[:3] == ["SESSION", "USER", "IMAGE"]
    assert table[1].split()[0] == "s1" and "512M" in table[1]
    assert "\x1b" not in table[1], "a session's texts cannot reach the terminal as escapes"
    assert json.loads(sandbox("ls", "--json").stdout)[0]["session_id"] == "s1"
    assert sandbox("ls", "-q").stdout == b"s1\n"


def test_ps_lists_executions(story, sandbox):
    table = sandbox("ps", "s1").stdout.decode().splitlines()
    assert table[0].split()[0] == "EXECUTION" and table[1].split()[:2] == ["e", "ended"]
    assert json.loads(sandbox("ps", "s1", "--json").stdout)[0]["result"]["exit_code"] == 3


def test_kill_ends_an_execution_or_a_session(story, sandbox):
    story.script["s1"] = [(200, SESSION)]
    assert sandbox("kill", "s1", "e").returncode == 0
    assert sandbox("kill", "s1").returncode == 0
    assert story.asked("DELETE", "") == ["/v1/sessions/s1/executions/e", "/v1/sessions/s1"]
    assert sandbox("kill", "-s", "SIGINT", "s1", "e").returncode == 0
    assert posted(story, "/signal") == [{"signal": "SIGINT"}]


@pytest.mark.parametrize(
    "args",
    [
        (),
        ("fly",),
        ("run",),
        ("run", "--env", "A", "true"),
        ("run", "--session", "a", "--user", "b", "true"),
        ("run", "--session", "a", "--image", "b", "true"),
        ("kill", "-s", "SIGINT", "s1"),
        ("shell",),
    ],
)
def test_wrong_usage_is_2_and_one_line_after_the_usage(story, sandbox, args):
    done = sandbox(*args)
    assert done.returncode == 2 and story.seen == []
    assert done.stderr.splitlines()[-1].startswith(b"sandbox")


@pytest.mark.parametrize(("args", "code"), [(("ls",), 1), (("ps", "s1"), 1), (("run", "true"), 125)])
def test_a_problem_is_one_line(sandbox, free_port, args, code):
    done = (
        sandbox(*args, "--url", f"http://127.0.0.1:{free_port}")
        if args[0] != "run"
        else sandbox("--url", f"http://127.0.0.1:{free_port}", *args)
    )
    assert done.returncode == code
    assert done.stderr.startswith(b"sandbox: No connection to") and done.stderr.count(b"\n") == 1


def test_a_missing_key_is_told_without_a_traceback(sandbox, environment, tmp_path):
    bare = {name: value for name, value in environment.items() if not name.startswith("SANDBOX_")}
    done = sandbox("ls", env={**bare, "XDG_CONFIG_HOME": str(tmp_path)})
    assert done.returncode == 1 and b"SANDBOX_API_KEY" in done.stderr and b"Traceback" not in done.stderr


def test_help_has_examples_and_version_says_it(sandbox):
    assert b"examples:" in sandbox("--help").stdout and b"exit codes:" in sandbox("--help").stdout
    assert sandbox("--version").stdout.startswith(b"sandbox 0.")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("sandbox ", {"run", "shell", "cp", "files", "ls", "ps", "kill", "fork", "undo", "completion"}),
        ("sandbox ru", {"run"}),
        ("sandbox run --ti", {"--timeout"}),
        ("sandbox --url http://x kill --s", {"--signal"}),
        ("sandbox run --session ", {"s1"}),
        ("sandbox ps ", {"s1", "--json"}),
        ("sandbox completion ", {"bash", "zsh", "fish"}),
        ("sandbox run --cwd ", set()),
        ("sandbox files ", {"ls", "cat", "rm", "--json"}),
        ("sandbox restore ", {"s1"}),
        ("sandbox run --wo", {"--workspace"}),
    ],
)
def test_bash_completes(story, environment, tmp_path, line, expected):
    """In a real bash, with a real `sandbox` on the path."""
    program = tmp_path / "sandbox"
    program.write_text(f'#!/bin/sh\nexec {" ".join(PROGRAM)} "$@"\n')
    program.chmod(0o755)
    story.script["sessions"] = [(200, {"sessions": [SESSION]})]
    words = line.split(" ")
    script = (
        'source <(sandbox completion bash); COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _sandbox; '
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "-uc", script, "bash", *words],
        env={**environment, "PATH": f"{tmp_path}:{environment['PATH']}"},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.stderr == ""
    found = set(done.stdout.split())
    assert expected <= found and (found or not expected)
    if line.endswith("--cwd "):
        assert found == set()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_option_is_in_every_completion(sandbox, shell):
    script = sandbox("completion", shell).stdout.decode()
    for word in ("run", "completion", "session", "timeout", "quiet", "signal"):
        assert word in script
    if shutil.which(shell):  # where it is installed it has the last word
        subprocess.run([shell, "-n"], input=script.encode(), check=True, timeout=10)


def test_every_command_has_help():
    for action in parser()._actions:
        for command in (action.choices or {}).values() if isinstance(action.choices, dict) else ():
            assert command.description and command.get_default("run")


@pytest.mark.parametrize(
    ("keys", "typed"),
    [
        ([b"ls ~.\r"], Typed(b"ls ~.\r")),
        ([b"a\r~."], Typed(b"a\r", leave=True)),
        ([b"\r", b"~", b"."], Typed(leave=True)),
        ([b"~."], Typed(leave=True)),
        ([b"\r~~."], Typed(b"\r~.")),
        ([b"\r~x"], Typed(b"\r~x")),
        ([b"\r~?"], Typed(b"\r", HELP)),
        ([b"\r~?~."], Typed(b"\r", HELP, leave=True)),
        ([b"~\r~."], Typed(b"~\r", leave=True)),
    ],
)
def test_escapes_are_found_at_the_beginning_of_a_line(keys, typed):
    escapes = Escapes()
    *before, last = [escapes.read(piece) for piece in keys]
    assert last == typed or (all(not one.leave for one in before) and last.leave and typed.leave)


def test_a_terminated_run_closes_its_session(story, environment):
    story.faults = [Fault(after=230, how="silence")]
    process = subprocess.Popen(
        [*PROGRAM, "run", "make"], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    )
    assert process.stdout.readline() == b"out\n"
    time.sleep(0.1)
    process.terminate()
    process.communicate(timeout=10)
    assert process.returncode == 143
    assert story.asked("DELETE", "")[-1] == "/v1/sessions/s1"
