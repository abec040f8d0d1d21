"""Connections, timeouts, retries and errors, against a server that misbehaves."""

import contextlib
import json
import pickle
import re
import socket
import threading
import time

import pytest
import requests
from sandbox_client import (
    AnswerTimeout,
    ConfigurationError,
    ConnectionFailed,
    ConnectionLost,
    GuestUnavailable,
    InvalidRequest,
    LimitReached,
    RequestTooLarge,
    SandboxClient,
    SandboxError,
    Unauthorized,
    Unavailable,
    UnexpectedAnswer,
)
from sandbox_client.errors import BY_CODE, BY_STATUS
from sdk_wire import KEY, RESULT, SESSION, Answer, Wire, problem

CUT = Answer(cut="before")
HTML = "<html>oops</html>"


@contextlib.contextmanager
def slow_server():
    """Takes a request at a leisurely pace, and answers it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)

        def serve():
            connection, _ = listener.accept()
            with connection:
                taken = b""
                while b"\r\n\r\n" not in taken:
                    taken += connection.recv(1 << 16)
                head, _, body = taken.partition(b"\r\n\r\n")
                left = int(re.search(rb"Content-Length: (\d+)", head)[1]) - len(body)
                while left:
                    time.sleep(0.005)
                    left -= len(connection.recv(min(left, 1 << 16)))
                answer = json.dumps(RESULT).encode()
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(answer), answer))

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def executions(wire):
    return wire.requests("POST", "/execute")


def test_one_connection_serves_many_commands(sandbox, wire):
    for _ in range(5):
        sandbox.execute("true")
    assert len({seen.peer for seen in wire.seen}) == 1


@pytest.mark.parametrize("cut", ["before", "middle"])
def test_a_cut_connection_is_retried_with_the_same_key_and_body(sandbox, wire, cut):
    wire.plays(Answer(RESULT, cut=cut))
    assert sandbox.execute("make").ok
    first, second = executions(wire)
    assert first.headers["idempotency-key"] == second.headers["idempotency-key"]
    assert first.body == second.body


def test_each_call_has_an_idempotency_key_of_its_own(sandbox, wire):
    sandbox.execute("true")
    sandbox.execute("true")
    keys = {seen.headers["idempotency-key"] for seen in wire.requests("POST")}
    assert len(keys) == 3  # the create has one too


@pytest.mark.parametrize(
    "passing",
    [
        problem("server_busy", 503, retryable=True, retry_after="0"),
        problem("shell_busy", 429, retry_after="0"),
        problem("result_forgotten", 409, retryable=True),
        Answer(HTML, 502),
        Answer(HTML, 503),
        Answer(HTML, 504),
    ],
)
def test_what_passes_is_retried(sandbox, wire, passing):
    wire.plays(passing)
    assert sandbox.execute("true").ok
    assert len(executions(wire)) == 2


@pytest.mark.parametrize(
    ("lasting", "kind"),
    [
        (problem("guest_unavailable", 503), GuestUnavailable),
        (problem("internal_error", 500), SandboxError),
        (problem("invalid_request", 400), InvalidRequest),
        (problem("rate_limited", 429), LimitReached),
        (Answer(HTML, 500), UnexpectedAnswer),
    ],
)
def test_what_lasts_is_not_retried(sandbox, wire, lasting, kind):
    wire.plays(lasting)
    with pytest.raises(kind):
        sandbox.execute("true")
    assert len(executions(wire)) == 1


def test_a_request_without_an_idempotency_key_is_not_repeated(sandbox, wire):
    wire.plays(CUT)
    with pytest.raises(ConnectionLost):
        sandbox.extend()
    assert len(wire.requests("POST", "/extend")) == 1


def test_reading_and_closing_are_repeated(sandbox, wire):
    wire.plays(CUT, Answer(SESSION))
    assert sandbox.info().session_id == "s1"


def test_retries_end(connect, wire):
    wire.plays(CUT, CUT, CUT)
    with pytest.raises(ConnectionLost):
        connect(retries=1).execute("true")
    assert len(executions(wire)) == 2


def test_retry_after_is_honoured(sandbox, wire):
    wire.plays(problem("rate_limited", 429, retry_after="1"))
    started = time.monotonic()
    sandbox.execute("true")
    assert time.monotonic() - started >= 1


def test_a_retry_after_beyond_all_patience_is_not_waited_for(sandbox, wire):
    wire.plays(problem("too_many_executions", 429, retry_after="3600", limit=4))
    started = time.monotonic()
    with pytest.raises(LimitReached) as caught:
        sandbox.execute("true")
    assert time.monotonic() - started < 1
    assert (caught.value.retry_after, caught.value.limit) == (3600, 4)


def test_a_retry_after_may_be_a_date(connect, wire):
    wire.plays(problem("rate_limited", 429, retry_after="Wed, 01 Jan 2020 00:00:00 GMT"))
    assert connect().execute("true").ok


def test_an_answer_that_does_not_come_in_time_is_not_waited_for_twice(connect, wire):
    wire.plays(Answer(RESULT, delay=0.6))
    with pytest.raises(AnswerTimeout, match="may have run"):
        connect(read_timeout=0.1).execute("sleep 9", timeout=0.1)
    assert len(executions(wire)) == 1


def test_the_read_timeout_comes_on_top_of_the_commands_own(connect, wire):
    wire.plays(Answer(RESULT, delay=0.4))
    assert connect(read_timeout=0.1).execute("sleep 0.3", timeout=1).ok


def test_sending_much_may_take_longer_than_connecting():
    """The bytes trickle: the timeout is for each piece, not for all of them."""
    with slow_server() as url:
        sandbox = SandboxClient.attach("s1", url=url, api_key=KEY, connect_timeout=0.2, read_timeout=5)
        assert sandbox.execute("cat", stdin="x" * (6 << 20), timeout=1).ok
        sandbox._transport.close()


def test_a_server_that_is_down_is_named_with_what_to_do(free_port):
    url = f"http://127.0.0.1:{free_port}"
    with pytest.raises(ConnectionFailed, match=r"quickstart\.sh status") as caught:
        SandboxClient(url=url, api_key=KEY, retries=0).execute("true")
    assert url in str(caught.value) and isinstance(caught.value.__cause__, requests.RequestException)


def test_a_server_that_comes_up_meanwhile_is_reached(free_port):
    """A connection that was not made is tried again even for `extend`, which carries no key."""
    sandbox = SandboxClient.attach("s1", url=f"http://127.0.0.1:{free_port}", api_key=KEY, retries=6)
    late: list[Wire] = []

    def come_up() -> None:
        late.append(Wire(free_port))
        late[0].plays(Answer(SESSION))
        late[0].start()

    timer = threading.Timer(0.2, come_up)
    timer.start()
    assert sandbox.extend().session_id == "s1"
    timer.join()
    late[0].stop()
    sandbox._transport.close()


def test_a_redirect_is_an_error_and_the_key_goes_nowhere_else(sandbox, wire):
    wire.plays(Answer(status=307, headers={"Location": "http://evil.example/"}))
    with pytest.raises(UnexpectedAnswer, match=r"redirects to http://evil\.example/"):
        sandbox.execute("true")
    assert len(executions(wire)) == 1


def test_proxies_are_ignored_on_loopback(connect, monkeypatch, free_port):
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_port}")
    assert connect().execute("true").ok


def test_a_netrc_entry_does_not_replace_the_key(sandbox, wire, monkeypatch, tmp_path):
    """On loopback nothing of the environment is read; elsewhere it is, so it is switched on here."""
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password other\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    sandbox._transport._session.trust_env = True
    sandbox.execute("true")
    assert wire.seen[0].headers["authorization"] == f"Bearer {KEY}"


def test_cookies_are_not_kept(sandbox, wire):
    wire.plays(Answer(RESULT, headers={"Set-Cookie": "a=b"}))
    sandbox.execute("true")
    sandbox.execute("true")
    assert all("cookie" not in seen.headers for seen in wire.seen)


def test_a_problem_keeps_what_the_server_said(sandbox, wire):
    wire.plays(problem("invalid_request", 400, field="timeout"))
    with pytest.raises(InvalidRequest, match="about invalid_request") as caught:
        sandbox.execute("true")
    error = caught.value
    assert (error.code, error.status, error.request_id, error.field) == (
        "invalid_request",
        400,
        "r1",
        "timeout",
    )


def test_an_unknown_code_becomes_the_base_class(sandbox, wire):
    wire.plays(problem("out_of_cheese", 418, shelf="top"))
    with pytest.raises(SandboxError) as caught:
        sandbox.execute("true")
    assert type(caught.value) is SandboxError
    assert (caught.value.code, caught.value.extras) == ("out_of_cheese", {"shelf": "top"})


@pytest.mark.parametrize(
    ("status", "kind"),
    [(401, Unauthorized), (404, UnexpectedAnswer), (413, RequestTooLarge), (503, Unavailable)],
)
def test_an_answer_of_a_proxy_is_understood_by_its_status(connect, wire, status, kind):
    wire.plays(Answer(HTML, status))
    with pytest.raises(kind):
        connect(retries=0).execute("true")


def test_a_page_that_is_not_json_is_not_a_sandbox_server(sandbox, wire):
    wire.plays(Answer(HTML))
    with pytest.raises(UnexpectedAnswer, match="sandbox server"):
        sandbox.execute("true")


def test_every_error_says_whether_to_retry_and_can_be_pickled():
    for kind in {*BY_CODE.values(), *BY_STATUS.values(), ConnectionFailed, ConfigurationError}:
        assert "retry" in (kind.__doc__ or "").lower(), kind
        assert pickle.loads(pickle.dumps(kind("words", code="c"))).code == "c"


@pytest.mark.parametrize("options", [{"connect_timeout": 0}, {"read_timeout": -1}, {"retries": -1}])
def test_waiting_for_ever_or_never_is_refused(connect, options):
    with pytest.raises(ConfigurationError):
        connect(**options)
