"""Python in the sandbox: one process that remembers, over HTTP and through the SDK."""

from __future__ import annotations

from sandbox_client import SandboxClient


def test_variables_and_imports_stay_and_the_last_value_is_given(sandbox: SandboxClient) -> None:
    sandbox.run_python("import json\nx = {'a': 1}")
    result = sandbox.run_python("print('hello')\njson.dumps(x)")
    assert (result.value, result.stdout, result.exit_code, result.error) == (
        "'{\"a\": 1}'",
        "hello\n",
        0,
        None,
    )


def test_execute_with_a_language_is_the_same(sandbox: SandboxClient) -> None:
    sandbox.run_python("x = 5")
    assert sandbox.execute("x + 1", language="python").value == "6"


def test_streams_come_apart(sandbox: SandboxClient) -> None:
    result = sandbox.run_python("import sys\nprint('o')\nprint('e', file=sys.stderr)")
    assert (result.stdout, result.stderr, result.output) == ("o\n", "e\n", "o\ne\n")


def test_an_error_has_a_clean_traceback(sandbox: SandboxClient) -> None:
    result = sandbox.run_python("def f():\n    return 1 / 0\nf()")
    assert result.exit_code == 1
    assert result.error is not None
    assert (result.error.name, result.error.message) == ("ZeroDivisionError", "division by zero")
    assert "return 1 / 0" in result.error.traceback
    assert "/opt/sandbox" not in result.error.traceback


def test_a_timeout_interrupts_without_losing_anything(sandbox: SandboxClient) -> None:
    sandbox.run_python("x = 1")
    result = sandbox.run_python("while True: pass", timeout=0.5)
    assert (result.timed_out, result.exit_code, result.shell_restarted) == (True, 124, False)
    assert sandbox.run_python("x").value == "1"


def test_python_and_the_shell_share_the_workspace(sandbox: SandboxClient) -> None:
    sandbox.execute("echo 41 > number")
    assert sandbox.run_python("int(open('number').read()) + 1").value == "42"


def test_it_runs_as_the_user_in_the_workspace(sandbox: SandboxClient) -> None:
    result = sandbox.run_python("import getpass, os\ngetpass.getuser(), os.getcwd(), os.path.expanduser('~')")
    assert result.value == "('user', '/workspace', '/workspace')"


def test_out_of_memory_costs_the_interpreter_and_is_told(sandbox: SandboxClient) -> None:
    result = sandbox.run_python("x = bytearray(2 * 10**9)")
    assert (result.oom_killed, result.shell_restarted, result.signal) == (True, True, "SIGKILL")
    assert sandbox.run_python("1 + 1").value == "2"
