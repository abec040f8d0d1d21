"""Streams and executions through both clients, against a server whose connections really break."""

import asyncio
import contextlib
import dataclasses
import threading
import time

import pytest
from sandbox_client import (
    PIPE,
    AsyncSandboxClient,
    ConfigurationError,
    Conflict,
    ConnectionFailed,
    ConnectionLost,
    ExecutionNotFound,
    NoStdin,
    SandboxClient,
    SandboxError,
    SessionEnded,
    StdinFull,
    StillRunning,
    TooManyStreams,
)
from sdk_story import Fault, Story, said
from sdk_wire import KEY, problem

PIECES = (("stdout", "grün ".encode()), ("stderr", b"oops\n"), ("stdout", b"\xe2\x82"), ("stdout", b"\xac!"))


@pytest.fixture
def story():
    server = Story(*PIECES)
    yield server
    server.stop()


class Blocking:
    """The plain client, called as a person calls it."""

    def __init__(self, url, **options):
        self.sandbox = SandboxClient(url=url, api_key=KEY, **options)

    def call(self, name, *args, on=None, **options):
        return getattr(on or self.sandbox, name)(*args, **options)

    def collect(self, name, *args, on=None, **options):
        return list(getattr(on or self.sandbox, name)(*args, **options))

    def close(self):
        self.sandbox._transport.close()


class Awaiting:
    """The other client, in an event loop of its own."""

    def __init__(self, url, **options):
        self.sandbox = AsyncSandboxClient(url=url, api_key=KEY, **options)
        self.loop = asyncio.new_event_loop()

    def call(self, name, *args, on=None, **options):
        return self.loop.run_until_complete(getattr(on or self.sandbox, name)(*args, **options))

    def collect(self, name, *args, on=None, **options):
        async def all_of_it():
            return [event async for event in getattr(on or self.sandbox, name)(*args, **options)]

        return self.loop.run_until_complete(all_of_it())

    def close(self):
        self.loop.run_until_complete(self.sandbox._transport.hang_up())
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()


@pytest.fixture(params=[Blocking, Awaiting])
def ways(request, story):
    """Makes clients of one kind, and closes them."""
    made = []

    def make(url=story.url, silence=30.0, **options):
        made.append(request.param(url, **options))
        connection = made[-1].sandbox._session.connection
        connection.patience = dataclasses.replace(connection.patience, silence=silence)
        return made[-1]

    yield make
    for way in made:
        way.close()


def until(true):
    deadline = time.monotonic() + 2
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def data(events):
    return b"".join(event.data for event in events)


def test_a_stream_gives_start_output_and_end(story, ways):
    events = ways().collect("stream", "make")
    assert [event.kind for event in events] == ["start", "stdout", "stderr", "stdout", "stdout", "end"]
    assert data(events) == story.output
    assert "".join(event.text for event in events) == "grün oops\n€!"
    assert events[-1].result.exit_code == 3 and events[0].execution_id == "e"
    assert all(event.result is None for event in events[:-1])


def test_every_option_reaches_the_server(story, ways):
    options = {
        "cwd": "/tmp",
        "env": {"A": "b"},
        "stdin": "in",
        "timeout": 5,
        "shell": "x",
        "language": "bash",
    }
    ways().collect("stream", ["ls"], pty=(80, 24), kill_on_disconnect=True, **options)
    body = story.seen[-1][2]
    assert body.pop("execution_id")
    terminal = {"pty": {"cols": 80, "rows": 24}}
    assert body == {"command": ["ls"], "stream": True, "kill_on_disconnect": True, **terminal, **options}


def test_an_option_that_does_not_exist_is_an_error_at_once(story, ways):
    with pytest.raises(TypeError, match="tiemout"):
        ways().sandbox.stream("ls", tiemout=3)
    assert story.seen == []


@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize("cut", [0, 1, 60, 130, 200, 300, 420])
def test_a_broken_connection_loses_and_repeats_nothing(story, ways, cut, how):
    story.faults = [Fault(after=cut, how=how)]
    events = ways().collect("stream", "make")
    assert data(events) == story.output
    assert [event.kind for event in events].count("start") == 1
    assert len(story.executions) == 1, "it must not run twice"


def test_many_breaks_in_a_row_are_survived(story, ways):
    story.faults = [Fault(after=cut) for cut in (5, 150, 100, 20, 90, 0)]
    assert data(ways().collect("stream", "make")) == story.output
    assert len(story.executions) == 1


def test_a_break_before_the_first_event_asks_for_the_same_execution_again(story, ways):
    story.faults = [Fault(after=0), Fault(status=502), Fault(status=503)]
    assert data(ways().collect("stream", "make")) == story.output
    posts = [body for method, path, body in story.seen if method == "POST" and path.endswith("/executions")]
    assert len(posts) == 4 and all(body == posts[0] for body in posts)


def test_once_begun_it_goes_on_where_it_broke(story, ways):
    story.faults = [Fault(after=story.lines(None).index(b'{"event": "stderr"'))]
    ways().collect("stream", "make")
    assert story.asked("GET", "/events")[0].endswith("/events?after=6")


def test_silence_counts_as_a_break(story, ways):
    story.faults = [Fault(after=150, how="silence")]
    started = time.monotonic()
    assert data(ways(silence=0.3).collect("stream", "make")) == story.output
    assert time.monotonic() - started < 2


def test_keepalives_are_not_shown(story, ways):
    story.keepalives = 3
    assert "keepalive" not in {event.kind for event in ways().collect("stream", "make")}


def test_a_server_that_restarts_is_waited_for(ways, free_port):
    """Killed in the middle of a stream, gone for a while (connections are refused), and there again."""
    first = Story(*PIECES, port=free_port)
    first.faults = [Fault(after=200)]
    again = []

    def restart():
        until(lambda: first.asked("POST", "/executions"))
        first.stop()
        time.sleep(1)
        again.append(Story(*PIECES, port=free_port))

    way = ways(url=first.url)
    threading.Thread(target=restart, daemon=True).start()
    try:
        assert data(way.collect("stream", "make")) == first.output
    finally:
        until(lambda: again)
        again[0].stop()


def test_patience_ends(story, ways):
    story.faults = [Fault(after=200)] + [Fault(status=502)] * 50
    started = time.monotonic()
    with pytest.raises(ConnectionLost):
        ways(reconnect_timeout=0.5).collect("stream", "make")
    assert time.monotonic() - started < 2


def test_a_server_that_is_not_there_is_told_soon(ways, free_port):
    started = time.monotonic()
    with pytest.raises(ConnectionFailed):
        ways(url=f"http://127.0.0.1:{free_port}").collect("stream", "make")
    assert time.monotonic() - started < 3


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [("session_ended", 410, SessionEnded), ("too_many_streams", 429, TooManyStreams)],
)
def test_a_refusal_is_raised(story, ways, code, status, kind):
    story.faults = [Fault(status=status, problem=problem(code, status).body)]
    with pytest.raises(kind):
        ways().collect("stream", "make")
    assert len(story.asked("POST", "/executions")) == 1


def test_leaving_the_loop_hangs_up_and_kills_nothing(story, ways):
    story.faults = [Fault(after=200, how="silence")]
    way = ways()
    if isinstance(way, Blocking):
        for _ in way.sandbox.stream("make"):
            break
    else:

        async def first():
            async for _ in way.sandbox.stream("make"):
                break

        way.loop.run_until_complete(first())
    assert way.call("executions")
    until(lambda: story.hung_up == [True])
    assert story.asked("DELETE", "") == []


def test_callbacks_get_the_text_and_the_result_is_the_usual_one(story, ways):
    heard = []
    result = ways().call(
        "execute", "make", on_stdout=heard.append, on_stderr=lambda text: heard.append(("!", text))
    )
    assert heard == ["grün ", ("!", "oops\n"), "€!"]
    assert (result.exit_code, result.stdout) == (3, "grün oops\n€!")


def test_one_callback_is_enough(story, ways):
    heard = []
    ways().call("execute", "make", on_stderr=heard.append)
    assert heard == ["oops\n"]


def test_a_coroutine_function_may_listen_to_the_awaiting_client(story):
    heard = []

    async def listen(text):
        await asyncio.sleep(0)
        heard.append(text)

    way = Awaiting(story.url)
    way.call("execute", "make", on_stdout=listen)
    way.close()
    assert heard == ["grün ", "€!"]


def test_the_blocking_client_says_that_it_cannot_await(story):
    async def listen(text):
        await asyncio.sleep(0)

    way = Blocking(story.url)
    with pytest.raises(TypeError, match="AsyncSandboxClient"):
        way.call("execute", "make", on_stdout=listen)
    way.close()


def test_a_callback_that_fails_fails_the_call(story, ways):
    with pytest.raises(ZeroDivisionError):
        ways().call("execute", "make", on_stdout=lambda text: 1 / 0)


def test_the_blocking_client_works_inside_an_event_loop(story):
    """As in a notebook: it must not touch the loop that runs."""

    async def cell():
        with SandboxClient(url=story.url, api_key=KEY) as sandbox:
            return data(sandbox.stream("make")), sandbox.execute("make", on_stdout=str).exit_code

    assert asyncio.run(cell()) == (story.output, 3)


def test_start_runs_in_the_background(story, ways):
    execution = ways().call("start", "serve", stdin=PIPE, pty=(80, 24))
    body = story.seen[-1][2]
    expected = {"command": "serve", "stdin": "pipe", "background": True, "pty": {"cols": 80, "rows": 24}}
    assert body == {**expected, "execution_id": execution.id}


@pytest.mark.parametrize("name", ["start", "execute"])
def test_the_word_pipe_as_input_is_not_taken_for_an_open_one(story, ways, name):
    story.script["execute"] = [(200, {"exit_code": 0})]
    ways().call(name, "cat", stdin="pipe")
    body = story.seen[-1][2]
    assert "stdin" not in body and body["stdin_base64"] == "cGlwZQ=="


def test_a_start_whose_answer_was_lost_is_asked_for_again_and_runs_once(story, ways):
    story.script["executions"] = [(502, "proxy")]
    ways().call("start", "serve")
    assert len(story.asked("POST", "/executions")) == 2 and len(story.executions) == 1


def test_waiting_asks_until_it_is_over(story, ways):
    story.running_for = 2
    way = ways()
    result = way.call("wait", on=way.sandbox.execution("e"))
    assert (result.exit_code, result.stdout) == (3, "grün oops\n€!")
    assert len(story.asked("GET", "/executions/e?wait=60")) == 3


def test_waiting_for_too_long_says_so_and_leaves_it_running(story, ways):
    story.running_for = 10**6
    way = ways()
    with pytest.raises(StillRunning, match=r"still running after 0\.1 s") as caught:
        way.call("wait", on=way.sandbox.execution("e"), timeout=0.1)
    assert isinstance(caught.value, TimeoutError) and isinstance(caught.value, SandboxError)
    assert story.asked("DELETE", "") == []


def test_a_result_that_is_no_longer_kept_is_told(story, ways):
    story.script["e"] = [(200, {"execution_id": "e", "status": "ended", "result": None})]
    way = ways()
    with pytest.raises(Conflict, match="no longer kept") as caught:
        way.call("wait", on=way.sandbox.execution("e"))
    assert caught.value.code == "result_forgotten"


def test_a_handle_does_what_it_says(story, ways):
    way = ways()
    execution = way.sandbox.execution("e")
    way.call("send_input", "y\n", on=execution)
    way.call("close_input", on=execution)
    way.call("signal", "SIGINT", on=execution)
    way.call("resize", 100, 40, on=execution)
    way.call("kill", on=execution)
    base = "/v1/sessions/s1/executions/e"
    assert [seen for seen in story.seen if seen[1] != "/v1/sessions"] == [
        ("POST", f"{base}/input", {"data_base64": "eQo="}),
        ("POST", f"{base}/input", {"close": True}),
        ("POST", f"{base}/signal", {"signal": "SIGINT"}),
        ("POST", f"{base}/resize", {"cols": 100, "rows": 40}),
        ("DELETE", base, None),
    ]


def test_much_input_goes_in_parts(story, ways):
    way = ways()
    way.call("send_input", b"x" * (600 * 1024), on=way.sandbox.execution("e"))
    assert len(story.asked("POST", "/input")) == 3


def test_input_waits_while_the_program_does_not_read(story, ways):
    story.script["input"] = [said("stdin_full", 429, retryable=True)] * 5
    way = ways()
    way.call("send_input", "y\n", on=way.sandbox.execution("e"))
    assert len(story.asked("POST", "/input")) == 6


def test_input_does_not_wait_for_ever(story, ways):
    story.script["input"] = [said("stdin_full", 429, retryable=True)] * 50
    way = ways(reconnect_timeout=0.3)
    with pytest.raises(StdinFull):
        way.call("send_input", "y\n", on=way.sandbox.execution("e"))


def test_input_that_may_have_been_taken_is_not_sent_twice(story, ways):
    story.script["input"] = [(502, "proxy")]
    way = ways()
    with pytest.raises(ConnectionLost):
        way.call("send_input", "y\n", on=way.sandbox.execution("e"))
    assert len(story.asked("POST", "/input")) == 1


@pytest.mark.parametrize(
    ("code", "kind"), [("no_stdin", NoStdin), ("execution_not_found", ExecutionNotFound)]
)
def test_a_handles_problems_are_classes(story, ways, code, kind):
    story.script["input"] = [said(code, 409)]
    way = ways()
    with pytest.raises(kind):
        way.call("send_input", "y", on=way.sandbox.execution("e"))


def test_logs_are_text_and_bytes(story, ways):
    story.script["log"] = [(200, "ü"), (200, "ü")]  # a JSON text: any bytes will do
    way = ways()
    assert way.call("logs", on=way.sandbox.execution("e")) == '"\\u00fc"'
    assert way.call("log_bytes", "stderr", on=way.sandbox.execution("e")) == b'"\\u00fc"'
    assert story.asked("GET", "/log") == [
        "/v1/sessions/s1/executions/e/log",
        "/v1/sessions/s1/executions/e/log?stream=stderr",
    ]


def test_events_go_on_behind_a_position_and_end_when_all_was_read(story, ways):
    way = ways()
    events = way.collect("events", on=way.sandbox.execution("e"), after=6)
    assert data(events) == story.output[6:] and events[0].kind == "stderr"
    assert way.collect("events", on=way.sandbox.execution("e"), after=len(story.output) + 1) == []


def test_the_list_of_executions_is_read(story, ways):
    [info] = ways().call("executions")
    assert (info.execution_id, info.ended, info.result.exit_code) == ("e", True, 3)


@pytest.mark.parametrize("execution_id", ["", ".", "..", "a/b", "a?b", "a b"])
def test_an_execution_id_cannot_lead_to_another_path(story, ways, execution_id):
    with pytest.raises(ConfigurationError):
        ways().sandbox.execution(execution_id)


def test_a_terminals_id_has_a_dot(story, ways):
    assert ways().sandbox.execution("terminal.main").id == "terminal.main"
    assert "terminal.main" in repr(ways().sandbox.execution("terminal.main"))


def test_a_stream_that_was_never_begun_asks_nothing(story, ways):
    way = ways()
    stream = way.sandbox.stream("make")
    with contextlib.suppress(AttributeError):
        stream.close()
    assert story.seen == []
