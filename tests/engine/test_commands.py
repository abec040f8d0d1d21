"""What a command meets, over HTTP and through the SDK, in a real sandbox."""

from __future__ import annotations

import hashlib
import threading
import time

import pytest
from sandbox_client import CommandFailed, InvalidRequest, SandboxClient, SessionEnded, TooManyExecutions
from stack import Stack


def test_the_shell_keeps_directory_variables_and_functions(sandbox: SandboxClient) -> None:
    sandbox.execute("cd /tmp; export A=1; f() { echo f$1; }")
    result = sandbox.execute("pwd; echo $A; f 2")
    assert result.stdout == "/tmp\n1\nf2\n"
    assert result.cwd == "/tmp"


def test_a_person_in_the_sandbox_is_somebody_at_home(sandbox: SandboxClient) -> None:
    assert (
        sandbox.execute("whoami; echo ~; pwd; echo $SHELL").output
        == "user\n/workspace\n/workspace\n/bin/bash\n"
    )


def test_a_virtual_environment_stays_activated(sandbox: SandboxClient) -> None:
    sandbox.execute("python3 -m venv --without-pip env && source env/bin/activate", timeout=60, check=True)
    assert (
        sandbox.execute("which python; echo $VIRTUAL_ENV").output
        == "/workspace/env/bin/python\n/workspace/env\n"
    )


def test_git_works_without_complaint(sandbox: SandboxClient) -> None:
    result = sandbox.execute("git init -q r && cd r && git status --short && echo fine")
    assert (result.stdout, result.exit_code) == ("fine\n", 0)


def test_streams_come_apart_and_together_in_order(sandbox: SandboxClient) -> None:
    result = sandbox.execute("echo o1; sleep 0.05; echo e1 >&2; sleep 0.05; echo o2")
    assert (result.stdout, result.stderr, result.output) == ("o1\no2\n", "e1\n", "o1\ne1\no2\n")


def test_a_result_can_be_read_by_attribute_and_by_name(sandbox: SandboxClient) -> None:
    result = sandbox.execute("echo hi; exit 3")
    assert (result.output, result["output"], result.exit_code, result.ok) == ("hi\n", "hi\n", 3, False)
    assert result.duration_ms > 0 and result.execution_id and result.session_id == sandbox.session_id


def test_a_failure_is_a_result_unless_it_is_to_be_checked(sandbox: SandboxClient) -> None:
    assert sandbox.execute("false").exit_code == 1
    with pytest.raises(CommandFailed) as caught:
        sandbox.execute("echo why >&2; exit 7", check=True)
    assert (caught.value.result.exit_code, caught.value.result.stderr) == (7, "why\n")


def test_exit_gives_its_code_and_a_fresh_shell(sandbox: SandboxClient) -> None:
    sandbox.execute("a=1; cd /tmp")
    result = sandbox.execute("exit 3")
    assert (result.exit_code, result.shell_restarted) == (3, True)
    assert sandbox.execute("echo ${a-unset}; pwd").output == "unset\n/workspace\n"


def test_a_timeout_is_told_and_keeps_the_state(sandbox: SandboxClient) -> None:
    sandbox.execute("a=1")
    result = sandbox.execute("echo begun; sleep 60", timeout=0.5)
    assert (result.timed_out, result.exit_code, result.output, result.shell_restarted) == (
        True,
        124,
        "begun\n",
        False,
    )
    assert sandbox.execute("echo $a").output == "1\n"


def test_a_timeout_kills_children_that_left_with_setsid(sandbox: SandboxClient) -> None:
    sandbox.execute("setsid sleep 92.5 & (setsid nohup sleep 93.5 &) ; sleep 94.5", timeout=0.5)
    time.sleep(0.1)
    assert sandbox.execute(["pgrep", "-f", r"sleep 9[234].5"]).output == ""


def test_a_background_child_does_not_hold_the_answer_and_lives_on(sandbox: SandboxClient) -> None:
    began = time.monotonic()
    assert sandbox.execute("sleep 1000 & echo started").output == "started\n"
    assert time.monotonic() - began < 5
    assert sandbox.execute("sleep 60", timeout=0.3).timed_out
    assert sandbox.execute("pgrep -f 'sleep 1000' > /dev/null && echo alive").output == "alive\n"


def test_signals_are_named(sandbox: SandboxClient) -> None:
    result = sandbox.execute(["bash", "-c", "kill -SEGV $$"])
    assert (result.signal, result.exit_code) == ("SIGSEGV", 139)


def test_out_of_memory_is_told_and_the_session_goes_on(stack: Stack) -> None:
    with stack.client(memory="64m") as small:
        small.execute("x=kept")
        result = small.execute("python3 -c 'x = bytearray(10**9)'")
        assert (result.oom_killed, result.exit_code) == (True, 137)
        again = small.execute("echo $x")
        assert (again.output, again.oom_killed) == ("kept\n", False)


def test_137_alone_is_not_out_of_memory(sandbox: SandboxClient) -> None:
    result = sandbox.execute(["bash", "-c", "exit 137"])
    assert (result.exit_code, result.oom_killed, result.signal, result.timed_out) == (137, False, None, False)


def test_126_and_127_are_as_bash_gives_them(sandbox: SandboxClient) -> None:
    sandbox.execute("echo data > plain")
    assert sandbox.execute("./plain").exit_code == sandbox.execute(["./plain"]).exit_code == 126
    assert sandbox.execute("nope").exit_code == sandbox.execute(["nope"]).exit_code == 127


def test_large_output_is_cut_with_head_and_tail_and_the_true_size(sandbox: SandboxClient) -> None:
    result = sandbox.execute("echo first; head -c 5000000 /dev/zero | tr '\\0' x; echo; echo last")
    assert result.truncated
    assert result.stdout_bytes == 5_000_000 + len("first\n\nlast\n")
    assert result.stdout.startswith("first\nxxx") and result.stdout.endswith("xxx\nlast\n")
    assert "bytes omitted" in result.stdout
    assert len(result.stdout) < (1 << 20) + 100


def test_bytes_that_are_not_text_survive(sandbox: SandboxClient) -> None:
    result = sandbox.execute(r"printf 'a\377\0b'")
    assert result.stdout == "a�\0b"
    assert result.stdout_raw == result.output_raw == b"a\xff\x00b"
    assert result.stderr_base64 is None


def test_a_stdin_of_50_mebibytes_arrives_whole(sandbox: SandboxClient) -> None:
    data = bytes(range(256)) * (50 << 12)
    result = sandbox.execute("sha256sum", stdin=data)
    assert result.stdout.split()[0] == hashlib.sha256(data).hexdigest()


def test_a_stdin_as_text_arrives_as_utf_8(sandbox: SandboxClient) -> None:
    assert sandbox.execute("cat", stdin="é☃\n").output == "é☃\n"
    assert sandbox.execute(["cat"], stdin="x").output == "x"


def test_an_argument_list_of_a_mebibyte_works(sandbox: SandboxClient) -> None:
    result = sandbox.execute(["bash", "-c", 'echo $#; printf %s "$@" | wc -c', "name", *["x" * 1023] * 1024])
    assert result.output == f"1024\n{1023 * 1024}\n"


def test_commands_of_a_mebibyte_work_in_every_shell(sandbox: SandboxClient) -> None:
    for number in range(12):
        result = sandbox.execute(f": '{'x' * ((1 << 20) - 100)}'; echo done", shell=f"shell{number}")
        assert result.output == "done\n"


def test_cwd_and_env_hold_for_one_command(sandbox: SandboxClient) -> None:
    result = sandbox.execute("pwd; printenv A; bash -c 'echo $A'", cwd="/usr", env={"A": "1"})
    assert result.output == "/usr\n1\n1\n"
    assert sandbox.execute("pwd; echo ${A-unset}").output == "/workspace\nunset\n"


def test_a_directory_that_does_not_exist_is_refused_by_name(sandbox: SandboxClient) -> None:
    with pytest.raises(InvalidRequest) as caught:
        sandbox.execute("pwd", cwd="/nowhere")
    assert caught.value.field == "cwd"


def test_named_shells_and_processes_of_their_own_run_beside_the_main_shell(sandbox: SandboxClient) -> None:
    slow = threading.Thread(target=sandbox.execute, args=("sleep 1.5; x=main",))
    slow.start()
    time.sleep(0.2)
    began = time.monotonic()
    assert sandbox.execute("x=other; echo $x", shell="other").output == "other\n"
    assert sandbox.execute("echo ${x-unset}", shell=None).output == "unset\n"
    assert time.monotonic() - began < 1
    slow.join(10)
    assert sandbox.execute("echo $x").output == "main\n"


def test_too_many_commands_at_once_are_told(stack: Stack, sandbox: SandboxClient) -> None:
    client = SandboxClient.attach(sandbox.session_id, url=stack.url, api_key=stack.key, retries=0)
    threads = [
        threading.Thread(target=client.execute, args=("sleep 1",), kwargs={"shell": None}) for _ in range(16)
    ]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    with pytest.raises(TooManyExecutions) as caught:
        client.execute("true", shell=None)
    assert (caught.value.limit, caught.value.allowed) == ("executions", 16)
    for thread in threads:
        thread.join(10)
    assert client.execute("echo again").output == "again\n"


def test_leaving_the_block_closes_only_what_the_client_created(stack: Stack) -> None:
    with stack.client(user_id="visitor") as owner:
        with stack.client(user_id="visitor") as guest:
            assert guest.session_id == owner.session_id
        with SandboxClient.attach(owner.session_id, url=stack.url, api_key=stack.key) as attached:
            assert attached.execute("echo attached").output == "attached\n"
        assert owner.execute("echo still open").output == "still open\n"
        session_id = owner.session_id
    with (
        SandboxClient.attach(session_id, url=stack.url, api_key=stack.key) as late,
        pytest.raises(SessionEnded) as caught,
    ):
        late.execute("true")
    assert caught.value.cause == "closed"


def test_the_client_finds_server_and_key_in_the_environment(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SANDBOX_URL", stack.url)
    monkeypatch.setenv("SANDBOX_API_KEY", stack.key)
    with SandboxClient() as sandbox:
        result = sandbox.execute("ls -la")
        assert result.exit_code == 0
