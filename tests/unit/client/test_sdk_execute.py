"""Commands and their results."""

import base64
import dataclasses
import pickle

import pytest
from sandbox_client import CommandFailed, ExecutionResult, PythonError, UnexpectedAnswer
from sdk_wire import RESULT, Answer


def test_a_plain_command_sends_only_the_command(sandbox, wire):
    sandbox.execute("ls")
    assert wire.seen[-1].body == {"command": "ls"}


def test_every_option_reaches_the_server(sandbox, wire):
    options = {"cwd": "/tmp", "env": {"A": "b"}, "stdin": "in", "timeout": 5, "language": "bash"}
    sandbox.execute(("ls", "-l"), shell="build", **options)
    assert wire.seen[-1].body == {"command": ["ls", "-l"], "shell": "build", **options}


def test_shell_none_means_a_process_of_its_own(sandbox, wire):
    sandbox.execute("ls", shell=None)
    assert wire.seen[-1].body == {"command": "ls", "shell": None}


def test_bytes_for_stdin_arrive_as_they_are(sandbox, wire):
    sandbox.execute("cat", stdin=b"\xff\x00")
    assert base64.b64decode(wire.seen[-1].body["stdin_base64"]) == b"\xff\x00"


def test_an_empty_stdin_is_sent_too(sandbox, wire):
    sandbox.execute("cat", stdin="")
    assert wire.seen[-1].body["stdin"] == ""


def test_python_gives_the_last_value(sandbox, wire):
    wire.plays(Answer({**RESULT, "value": "42"}))
    assert sandbox.run_python("x + 1", timeout=3).value == "42"
    assert wire.seen[-1].body == {"command": "x + 1", "language": "python", "timeout": 3}


def test_a_python_exception_is_part_of_the_result(sandbox, wire):
    error = {"name": "ZeroDivisionError", "message": "division by zero", "traceback": "Trace...", "new": 1}
    wire.plays(Answer({**RESULT, "exit_code": 1, "error": error}))
    result = sandbox.run_python("1/0")
    assert result.error == PythonError("ZeroDivisionError", "division by zero", "Trace...")
    assert not result.ok


def test_a_non_zero_exit_is_a_result(sandbox, wire):
    wire.plays(Answer({**RESULT, "exit_code": 3}))
    result = sandbox.execute("exit 3")
    assert (result.exit_code, result.ok) == (3, False)


def test_check_raises_with_the_result_and_the_last_words(sandbox, wire):
    wire.plays(Answer({**RESULT, "exit_code": 2, "stderr": "no such file\n"}))
    with pytest.raises(CommandFailed, match="exit code 2: no such file") as caught:
        sandbox.execute("ls /nowhere", check=True)
    assert caught.value.result.stdout == "hi\n"


def test_check_on_a_good_result_gives_it_back():
    result = ExecutionResult(exit_code=0)
    assert result.check() is result


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"exit_code": 124, "timed_out": True, "duration_ms": 2000}, "timed out after 2.0 s"),
        ({"exit_code": 137, "oom_killed": True, "signal": "SIGKILL"}, "out of memory"),
        ({"exit_code": 143, "signal": "SIGTERM"}, "killed by SIGTERM"),
    ],
)
def test_a_failure_says_how_it_ended(facts, words):
    with pytest.raises(CommandFailed, match=words):
        ExecutionResult(**facts).check()


def test_a_timeout_is_never_ok_whatever_the_exit_code():
    assert not ExecutionResult(exit_code=0, timed_out=True).ok


def test_bytes_that_are_not_utf8_survive(sandbox, wire):
    encoded = base64.b64encode(b"\xff\n").decode()
    wire.plays(Answer({**RESULT, "stdout": "\ufffd\n", "stdout_base64": encoded, "output_base64": encoded}))
    result = sandbox.execute("printf '\\377\\n'")
    assert (result.stdout_raw, result.output_raw, result.stderr_raw) == (b"\xff\n", b"\xff\n", b"")


def test_text_has_its_bytes_too():
    assert ExecutionResult(exit_code=0, stdout="é").stdout_raw == b"\xc3\xa9"


def test_a_result_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        ExecutionResult(exit_code=0).exit_code = 1


def test_a_result_reads_like_a_mapping():
    result = ExecutionResult(exit_code=0, output="hi")
    assert dict(result)["output"] == "hi" and "output" in result
    with pytest.raises(KeyError):
        result["nothing"]


def test_a_failed_command_can_cross_a_process_boundary():
    error = pickle.loads(pickle.dumps(CommandFailed(ExecutionResult(exit_code=9))))
    assert error.result.exit_code == 9 and str(error) == "exit code 9"


def test_an_answer_without_an_exit_code_is_not_taken_for_success(sandbox, wire):
    wire.plays(Answer({"ok": True}))
    with pytest.raises(UnexpectedAnswer, match="exit_code"):
        sandbox.execute("true")
