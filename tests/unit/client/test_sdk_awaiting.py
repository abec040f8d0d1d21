"""The awaiting client's wire, with errors and manners like the blocking one's; and the types of both."""

import asyncio
import subprocess
import sys
import textwrap
from pathlib import Path

import httpx
import pytest
from sandbox_client import (
    AnswerTimeout,
    AsyncFiles,
    AsyncSandboxClient,
    ClientClosed,
    ConfigurationError,
    ConnectionFailed,
    ConnectionLost,
    Files,
    SandboxClient,
    Unauthorized,
    Unavailable,
    UnexpectedAnswer,
)
from sdk_wire import KEY, RESULT, SESSION, Answer, problem

ROOT = Path(__file__).resolve().parents[3]


def use(wire, work, **options):
    """What `work` gives, inside a block of its own."""

    async def inside():
        async with AsyncSandboxClient(**{"url": wire.url, "api_key": KEY, **options}) as sandbox:
            return await work(sandbox)

    return asyncio.run(inside())


def executions(wire):
    return wire.requests("POST", "/execute")


def test_the_readme_snippet_works(wire):
    result = use(wire, lambda sandbox: sandbox.execute("ls -la"))
    assert (result.output, result.exit_code) == ("hi\n", 0)
    assert [(seen.method, seen.path) for seen in wire.seen] == [
        ("POST", "/v1/sessions"),
        ("POST", "/v1/sessions/s1/execute"),
        ("DELETE", "/v1/sessions/s1"),
    ]
    assert wire.seen[0].headers["authorization"] == f"Bearer {KEY}"


def test_one_connection_serves_many_commands(wire):
    async def work(sandbox):
        for _ in range(5):
            await sandbox.execute("true")

    use(wire, work)
    assert len({seen.peer for seen in wire.seen}) == 1


def test_tasks_that_start_together_share_one_session(wire):
    wire.session = Answer(SESSION, 201, delay=0.1)

    async def work():
        sandbox = AsyncSandboxClient(url=wire.url, api_key=KEY)
        await asyncio.gather(*(sandbox.execute(f"echo {number}") for number in range(8)))
        await sandbox.close()

    asyncio.run(work())
    assert len(wire.requests("POST", "/v1/sessions")) == 1 and len(executions(wire)) == 8


@pytest.mark.parametrize("cut", ["before", "middle"])
def test_a_cut_connection_is_retried_with_the_same_key(wire, cut):
    wire.plays(Answer(RESULT, cut=cut))
    assert use(wire, lambda sandbox: sandbox.execute("make")).ok
    first, second = executions(wire)
    assert first.headers["idempotency-key"] == second.headers["idempotency-key"]


def test_a_cut_connection_without_retries_is_told(wire):
    wire.plays(Answer(RESULT, cut="before"))
    with pytest.raises(ConnectionLost) as caught:
        use(wire, lambda sandbox: sandbox.execute("make"), retries=0)
    assert isinstance(caught.value.__cause__, httpx.HTTPError)


def test_an_answer_that_does_not_come_in_time(wire):
    wire.plays(Answer(RESULT, delay=0.6))
    with pytest.raises(AnswerTimeout):
        use(wire, lambda sandbox: sandbox.execute("sleep 9", timeout=0.1), read_timeout=0.1)
    assert len(executions(wire)) == 1


def test_a_server_that_is_down_is_named(free_port):
    async def work():
        sandbox = AsyncSandboxClient(url=f"http://127.0.0.1:{free_port}", api_key=KEY, retries=0)
        await sandbox.execute("true")

    with pytest.raises(ConnectionFailed, match=r"quickstart\.sh status"):
        asyncio.run(work())


def test_a_redirect_is_an_error_and_the_key_goes_nowhere_else(wire):
    wire.plays(Answer(status=307, headers={"Location": "http://evil.example/"}))
    with pytest.raises(UnexpectedAnswer, match="redirects to"):
        use(wire, lambda sandbox: sandbox.execute("true"))
    assert len(executions(wire)) == 1


def test_proxies_are_ignored_on_loopback(wire, monkeypatch, free_port):
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_port}")
    assert use(wire, lambda sandbox: sandbox.execute("true")).ok


def test_cookies_are_not_kept(wire):
    wire.plays(Answer(RESULT, headers={"Set-Cookie": "a=b"}))

    async def work(sandbox):
        await sandbox.execute("true")
        await sandbox.execute("true")

    use(wire, work)
    assert all("cookie" not in seen.headers for seen in wire.seen)


def test_a_refusal_is_the_same_class(wire):
    wire.plays(problem("unauthorized", 401))
    with pytest.raises(Unauthorized):
        use(wire, lambda sandbox: sandbox.execute("true"))


def test_a_close_that_failed_can_be_tried_again(wire):
    async def work():
        sandbox = AsyncSandboxClient(url=wire.url, api_key=KEY, retries=0)
        await sandbox.execute("true")
        wire.end = problem("keeper_unavailable", 503, retryable=True)
        with pytest.raises(Unavailable):
            await sandbox.close()
        wire.end = Answer(status=204)
        await sandbox.close()
        with pytest.raises(ClientClosed):
            await sandbox.execute("true")

    asyncio.run(work())
    assert len(wire.requests("DELETE")) == 2


def test_the_session_id_is_there_once_it_is_open(wire):
    async def work():
        sandbox = AsyncSandboxClient(url=wire.url, api_key=KEY)
        with pytest.raises(ConfigurationError, match="async with"):
            _ = sandbox.session_id
        await sandbox.execute("true")
        assert sandbox.session_id == "s1" and KEY not in repr(sandbox) and KEY not in str(vars(sandbox))
        await sandbox.close()

    asyncio.run(work())


def test_without_httpx_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sandbox_client.wire_httpx", None)
    with pytest.raises(ConfigurationError, match=r"\./client\[async\]"):
        AsyncSandboxClient(url="http://127.0.0.1:1", api_key=KEY)


def test_both_clients_have_the_same_methods():
    def names(kind):
        return {name for name in dir(kind) if not name.startswith("_")}

    assert names(SandboxClient) == names(AsyncSandboxClient)
    assert names(Files) == names(AsyncFiles)


def test_methods_can_be_looked_up_on_the_class():
    assert "shell command" in (SandboxClient.execute.__doc__ or "")
    assert not asyncio.iscoroutinefunction(SandboxClient.execute)
    assert asyncio.iscoroutinefunction(AsyncSandboxClient.execute)


TYPED = """
    from typing import Union
    from typing_extensions import assert_type
    from sandbox_client import *

    def plainly(sandbox: SandboxClient) -> None:
        assert_type(sandbox.execute("ls", cwd="/"), ExecutionResult)
        execution = sandbox.start("ls", stdin=PIPE, timeout=3)
        assert_type(execution, Execution)
        assert_type(execution.wait(timeout=5), ExecutionResult)
        assert_type([event for event in sandbox.stream("ls")], list[Event])
        assert_type(sandbox.files.write("a", b"b"), FileInfo)
        assert_type(sandbox.files.list(), list[FileInfo])
        assert_type(next(sandbox.files.read_stream("a")), bytes)
        assert_type(sandbox.fork(2), list[SandboxClient])
        assert_type(sandbox.upload("a").skipped, tuple[str, ...])
        with sandbox as same:
            assert_type(same, SandboxClient)

    async def awaiting(sandbox: AsyncSandboxClient) -> None:
        assert_type(await sandbox.execute("ls", cwd="/"), ExecutionResult)
        execution = await sandbox.start("ls", stdin=PIPE, timeout=3)
        assert_type(execution, AsyncExecution)
        assert_type(await execution.wait(timeout=5), ExecutionResult)
        assert_type([event async for event in sandbox.stream("ls")], list[Event])
        assert_type(await sandbox.files.write("a", b"b"), FileInfo)
        assert_type(await sandbox.files.list(), list[FileInfo])
        assert_type([event async for event in sandbox.files.watch()], list[FileEvent])
        assert_type(await sandbox.fork(2), list[AsyncSandboxClient])
        assert_type((await sandbox.undo()).undone, Union[str, None])
        async with sandbox as same:
            assert_type(same, AsyncSandboxClient)

    def wrongly(sandbox: SandboxClient) -> None:
        sandbox.execute(3)  # type: ignore[arg-type]
        sandbox.start("ls", tiemout=3)  # type: ignore[call-arg]
        sandbox.files.write("a", 3)  # type: ignore[arg-type]
"""


def test_both_clients_are_typed_as_they_are_called(tmp_path):
    """With mypy in its strictest mode, which also complains of an ignore that is not needed."""
    (tmp_path / "typed.py").write_text(textwrap.dedent(TYPED))
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "typed.py"]
    env = {"MYPYPATH": str(ROOT / "client"), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
