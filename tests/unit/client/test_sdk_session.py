"""Opening, using and closing a session through SandboxClient."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone

import pytest
from sandbox_client import (
    ClientClosed,
    ConfigurationError,
    SandboxClient,
    SessionEnded,
    Unavailable,
)
from sdk_wire import KEY, RESULT, SESSION, Answer, problem


def test_the_readme_snippet_works(connect, wire):
    with connect() as sandbox:
        result = sandbox.execute("ls -la")
    assert (result.output, result.exit_code, result["output"]) == ("hi\n", 0, "hi\n")
    assert [(seen.method, seen.path) for seen in wire.seen] == [
        ("POST", "/v1/sessions"),
        ("POST", "/v1/sessions/s1/execute"),
        ("DELETE", "/v1/sessions/s1"),
    ]


def test_no_session_is_opened_before_it_is_needed(sandbox, wire):
    assert wire.seen == []
    sandbox.execute("true")
    sandbox.execute("true")
    assert len(wire.requests("POST", "/v1/sessions")) == 1


def test_closing_an_unused_client_asks_nothing_of_the_server(sandbox, wire):
    sandbox.close()
    assert wire.seen == []


def test_options_are_sent_and_memory_may_be_written_as_people_do(connect, wire):
    options = {"user_id": "ada", "image": "default", "cpus": 0.5, "timeout": 60}
    labels = {"env": {"A": "1"}, "metadata": {"team": "blue"}}
    connect(memory="512m", **options, **labels).execute("true")
    assert wire.seen[0].body == {"memory": 512 * 1024 * 1024, **options, **labels}


@pytest.mark.parametrize(("said", "meant"), [("64", 64), ("2g", 2**31), ("1.5 GiB", 3 * 2**29), (7, 7)])
def test_memory_is_understood(connect, wire, said, meant):
    connect(memory=said).execute("true")
    assert wire.seen[0].body == {"memory": meant}


def test_a_memory_that_makes_no_sense_is_refused_at_once(connect):
    with pytest.raises(ConfigurationError, match="512m"):
        connect(memory="lots")


def test_leaving_the_block_leaves_a_session_that_was_there_before(connect, wire):
    wire.session = Answer({**SESSION, "status": "existing"})
    with connect(user_id="ada") as sandbox:
        sandbox.execute("true")
    assert wire.requests("DELETE") == []


def test_leaving_the_block_leaves_an_attached_session(wire):
    with SandboxClient.attach("other", url=wire.url, api_key=KEY) as sandbox:
        sandbox.execute("true")
    assert [seen.path for seen in wire.seen] == ["/v1/sessions/other/execute"]


def test_close_ends_an_attached_session_because_it_was_asked_to(wire):
    SandboxClient.attach("other", url=wire.url, api_key=KEY).close()
    assert [seen.path for seen in wire.requests("DELETE")] == ["/v1/sessions/other"]


@pytest.mark.parametrize("session_id", ["", "..", "a/b", "a?b", "a b"])
def test_a_session_id_cannot_lead_to_another_path(session_id):
    with pytest.raises(ConfigurationError):
        SandboxClient.attach(session_id, url="http://127.0.0.1:1", api_key=KEY)


def test_close_may_be_called_twice(sandbox, wire):
    sandbox.execute("true")
    sandbox.close()
    sandbox.close()
    assert len(wire.requests("DELETE")) == 1


@pytest.mark.parametrize(
    "gone", [problem("session_ended", 410, cause="expired"), problem("session_not_found", 404)]
)
def test_closing_what_is_gone_already_is_fine(sandbox, wire, gone):
    sandbox.execute("true")
    wire.end = gone
    sandbox.close()
    assert "closed" in repr(sandbox)


def test_a_close_that_failed_can_be_tried_again(connect, wire):
    sandbox = connect(retries=0)
    sandbox.execute("true")
    wire.end = problem("keeper_unavailable", 503, retryable=True)
    with pytest.raises(Unavailable):
        sandbox.close()
    wire.end = Answer(status=204)
    sandbox.close()
    assert len(wire.requests("DELETE")) == 2


def test_an_error_in_the_block_is_not_hidden_by_a_failing_close(connect, wire):
    wire.end = problem("internal_error", 500)
    with pytest.raises(ZeroDivisionError), connect():
        _ = 1 / 0
    assert len(wire.requests("DELETE")) == 1


def test_a_closed_client_says_so(sandbox):
    sandbox.execute("true")
    sandbox.close()
    with pytest.raises(ClientClosed):
        sandbox.execute("true")
    assert sandbox.session_id == "s1"


def test_an_ended_session_tells_why(sandbox, wire):
    wire.plays(problem("session_ended", 410, cause="oom", ended_at="2030-01-01T00:00:00Z"))
    with pytest.raises(SessionEnded) as caught:
        sandbox.execute("true")
    assert (caught.value.cause, caught.value.ended_at) == ("oom", "2030-01-01T00:00:00Z")


def test_threads_that_start_together_share_one_session(sandbox, wire):
    wire.session = Answer(SESSION, 201, delay=0.1)
    start = threading.Barrier(8)

    def work(number: int) -> int:
        start.wait(5)
        return sandbox.execute(f"echo {number}").exit_code

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(work, range(8))) == [0] * 8
    assert len(wire.requests("POST", "/v1/sessions")) == 1
    assert {seen.body["command"] for seen in wire.requests("POST", "/execute")} == {
        f"echo {number}" for number in range(8)
    }


def test_info_and_extend_give_the_session_with_real_times(sandbox, wire):
    wire.plays(
        Answer({**SESSION, "expires_at": "2030-01-01T00:00:00.5Z"}),
        Answer({**SESSION, "expires_at": "2030-01-01T00:01:00+00:00"}),
    )
    assert sandbox.info().expires_at == datetime(2030, 1, 1, 0, 0, 0, 500000, timezone.utc)
    assert sandbox.extend(60).expires_at == datetime(2030, 1, 1, 0, 1, tzinfo=timezone.utc)
    assert (wire.seen[-1].path, wire.seen[-1].body) == ("/v1/sessions/s1/extend", {"timeout": 60})


def test_the_list_is_read_to_its_end_and_opens_nothing(sandbox, wire):
    wire.plays(
        Answer({"sessions": [{**SESSION, "session_id": "a"}], "next_cursor": "c/1"}),
        Answer({"sessions": [{**SESSION, "session_id": "b"}], "next_cursor": None}),
    )
    found = sandbox.list_sessions(user_id="ada", metadata={"team": "blue"})
    assert [session.session_id for session in found] == ["a", "b"]
    assert [seen.path for seen in wire.seen] == [
        "/v1/sessions?metadata.team=blue&user_id=ada",
        "/v1/sessions?metadata.team=blue&user_id=ada&cursor=c%2F1",
    ]


def test_the_key_is_sent_but_never_shown(sandbox, wire):
    sandbox.execute("true")
    assert wire.seen[0].headers["authorization"] == f"Bearer {KEY}"
    assert KEY not in repr(sandbox) and KEY not in str(vars(sandbox))


def test_a_newer_server_may_say_more(sandbox, wire):
    wire.plays(Answer({**RESULT, "from_the_future": {"a": 1}}))
    assert sandbox.execute("true").ok
