"""Executions as resources: started, waited for, looked at, reached and ended, by whom they belong to."""

from __future__ import annotations

import contextlib
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import requests
from expect import ended, problem, refused
from plain import Open, Session, open_in
from stack import Stack, docker, running

MEBIBYTE = 1 << 20


def path_of(session: Session, execution: str = "", route: str = "") -> str:
    parts = [f"/v1/sessions/{session.id}/executions", execution, route]
    return "/".join(part for part in parts if part)


def start(session: Session, command: Any, **fields: Any) -> dict[str, Any]:
    answer = started(session, command, **fields)
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


def started(session: Session, command: Any, **fields: Any) -> requests.Response:
    headers = fields.pop("headers", {})
    return session.stack.call(
        "POST", path_of(session), json={"command": command, **fields}, headers=headers, timeout=90
    )


def background(session: Session, command: Any, **fields: Any) -> str:
    return str(start(session, command, background=True, **fields)["execution_id"])


def get(session: Session, execution: str, wait: float = 0) -> dict[str, Any]:
    answer = session.stack.call("GET", path_of(session, execution), params={"wait": wait})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def result_of(session: Session, execution: str) -> dict[str, Any]:
    told = get(session, execution, wait=20)
    assert told["status"] == "ended", told
    return dict(told["result"])


def listed(session: Session) -> list[dict[str, Any]]:
    return list(session.stack.call("GET", path_of(session)).json()["executions"])


def post(session: Session, execution: str, route: str, **body: Any) -> requests.Response:
    return session.stack.call("POST", path_of(session, execution, route), json=body)


def send(session: Session, execution: str, data: str, **more: Any) -> None:
    answer = post(session, execution, "input", data=data, **more)
    assert answer.status_code == 204, answer.text


def delete(session: Session, execution: str) -> None:
    answer = session.stack.call("DELETE", path_of(session, execution))
    assert (answer.status_code, answer.text) == (204, "")


def until(condition: Callable[[], Any], seconds: float = 15) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def printed(session: Session, execution: str, text: str) -> None:
    """Waits until the command has printed so much."""
    log = path_of(session, execution, "log")
    until(lambda: text in session.stack.call("GET", log).text)


def detached_rows(session: Session) -> int:
    with contextlib.closing(sqlite3.connect(session.stack.dir / "state" / "store" / "store.db")) as store:
        sql = "SELECT count(*) FROM detached WHERE session = ?"
        return int(store.execute(sql, (session.id,)).fetchone()[0])


# Starting.


def test_a_command_that_was_waited_for_comes_with_its_result(session: Session) -> None:
    told = start(session, "echo out; echo err >&2; exit 3")
    result = told["result"]
    assert (told["status"], told["shell"], told["language"], told["pty"]) == ("ended", "main", "bash", False)
    assert told["command"] == "echo out; echo err >&2; exit 3"
    assert (result["exit_code"], result["stdout"], result["stderr"]) == (3, "out\n", "err\n")
    assert (result["status"], result["cancelled"], result["execution_id"]) == (
        "ended",
        False,
        told["execution_id"],
    )
    assert told["started_at"] <= told["ended_at"]


def test_a_background_command_answers_at_once_and_goes_on(session: Session) -> None:
    told = start(session, "sleep 0.5; echo done", background=True)
    assert (told["status"], told["result"], told["ended_at"], told["shell"]) == ("running", None, None, None)
    assert result_of(session, told["execution_id"])["stdout"] == "done\n"


def test_execute_answers_202_for_what_goes_on_and_200_for_what_has_ended(session: Session) -> None:
    going = session.execute("sleep 1; echo late", background=True)
    assert (going.status_code, going.json()["status"]) == (202, "running")
    waited = session.execute("echo now", wait=10, shell=None)
    assert (waited.status_code, waited.json()["output"]) == (200, "now\n")
    assert result_of(session, going.json()["execution_id"])["output"] == "late\n"


def test_the_plain_endpoint_takes_background_too(session: Session, stack: Stack) -> None:
    body = {"session_id": session.id, "command": "sleep 1; echo plain", "background": True}
    answer = stack.call("POST", "/execute", json=body)
    assert answer.status_code == 202
    assert result_of(session, answer.json()["execution_id"])["output"] == "plain\n"


def test_waiting_ends_without_ending_the_command(session: Session) -> None:
    answer = session.execute("sleep 1; echo survived", wait=0.1, shell=None)
    assert (answer.status_code, answer.json()["status"]) == (202, "running")
    assert result_of(session, answer.json()["execution_id"])["stdout"] == "survived\n"


def test_a_timeout_ends_the_command_however_long_one_would_wait(session: Session) -> None:
    result = session.execute("echo begun; sleep 60", wait=30, timeout=0.5, shell=None).json()
    assert (result["timed_out"], result["exit_code"], result["stdout"]) == (True, 124, "begun\n")
    assert result["cancelled"] is False


def test_background_python_keeps_its_value(session: Session) -> None:
    execution = background(session, "sum(range(10))", language="python")
    assert result_of(session, execution)["value"] == "45"


def test_a_background_command_does_not_hold_the_main_shell(session: Session) -> None:
    execution = background(session, "sleep 30")
    assert session.output("echo free", timeout=5) == "free\n"
    delete(session, execution)


def test_a_background_command_in_a_named_shell_keeps_that_shells_order(session: Session) -> None:
    first = background(session, "sleep 1; x=first", shell="ordered")
    second = start(session, "echo $x", background=True, shell="ordered")
    assert (second["status"], second["shell"]) == ("queued", "ordered")
    assert result_of(session, second["execution_id"])["stdout"] == "first\n"
    assert get(session, first)["status"] == "ended"


# Looking.


def test_a_running_command_tells_what_it_has_used_and_printed(session: Session) -> None:
    code = "import os; x = bytearray(80 << 20); os.write(1, b'o' * 100); os.write(2, b'e' * 7)\n"
    execution = background(session, ["python3", "-c", code + "while True: pass"])
    until(lambda: get(session, execution)["seq"] == 107 and get(session, execution)["cpu_seconds"] > 0.2)
    told = get(session, execution)
    delete(session, execution)
    assert (told["status"], told["stdout_bytes"], told["stderr_bytes"], told["missing"]) == (
        "running",
        100,
        7,
        [],
    )
    assert told["peak_memory"] > 80 << 20


@pytest.mark.parametrize("shell", ["main", None])
def test_an_ended_command_tells_cpu_and_peak_memory(session: Session, shell: str | None) -> None:
    """It lives for two looks at least after it has grown, however slow the machine is."""
    hungry = "import time; x = bytearray(90 << 20)\nwhile time.process_time() < 0.4: time.sleep(0)"
    result = session.execute(f"python3 -c '{hungry}\ntime.sleep(2.2)'", shell=shell).json()
    assert 0.2 < result["cpu_seconds"] < 5
    assert 90 << 20 < result["peak_memory"] < 512 << 20


def test_a_command_that_does_nothing_costs_next_to_nothing(session: Session) -> None:
    session.output("python3 -c 'x = bytearray(90 << 20)'")
    result = session.execute("sleep 0.3").json()
    assert result["cpu_seconds"] < 0.2
    assert result["peak_memory"] is None or result["peak_memory"] < 60 << 20


@pytest.mark.parametrize("shell", ["main", None])
def test_the_cpu_time_of_what_was_killed_is_not_lost(session: Session, shell: str | None) -> None:
    busy = "python3 -c 'while True: pass'; echo never"
    execution = start(session, busy, wait=0, shell=shell)["execution_id"]
    until(lambda: get(session, execution)["cpu_seconds"] > 0.5)
    delete(session, execution)
    assert result_of(session, execution)["cpu_seconds"] > 0.5
    timed_out = session.execute(busy, shell=shell, timeout=1.5).json()
    assert timed_out["timed_out"] and timed_out["cpu_seconds"] > 0.1


@pytest.mark.parametrize("shell", ["main", None])
def test_the_peak_memory_of_a_small_command_is_small(session: Session, shell: str | None) -> None:
    """Not that of whoever started it."""
    peak = session.execute("sleep 0.3", shell=shell).json()["peak_memory"]
    assert peak is None or peak < 8 * MEBIBYTE


def test_the_list_has_what_runs_and_what_has_ended_oldest_first(opened: Open) -> None:
    session = opened()
    ids = [background(session, "sleep 30"), background(session, "true"), background(session, "sleep 31")]
    until(lambda: get(session, ids[1])["status"] == "ended")
    found = listed(session)
    assert [one["execution_id"] for one in found] == ids
    assert [one["status"] for one in found] == ["running", "ended", "running"]
    assert all("result" not in one and one["session_id"] == session.id for one in found)


def test_the_last_64_ended_ones_are_kept_and_older_ones_known_without_result(opened: Open) -> None:
    session = opened()
    runs = background(session, "sleep 60")
    ids = [session.execute("true", shell=None).json()["execution_id"] for _ in range(66)]
    assert [one["execution_id"] for one in listed(session)] == [runs, *ids[2:]]
    told = get(session, ids[0])
    assert (told["status"], told["result"]) == ("ended", None)
    assert get(session, ids[2])["result"]["exit_code"] == 0


def test_a_long_command_is_shown_by_its_beginning(session: Session) -> None:
    told = start(session, "true " + "é" * 2000)
    assert told["command"] == ("true " + "é" * 2000)[:1000]


def test_a_look_with_wait_answers_when_it_ends_or_when_the_time_is_up(session: Session) -> None:
    execution = background(session, "sleep 30")
    began = time.monotonic()
    assert get(session, execution, wait=0.5)["status"] == "running"
    assert time.monotonic() - began >= 0.5
    threading.Timer(0.3, delete, (session, execution)).start()
    assert get(session, execution, wait=60)["status"] == "ended"
    assert time.monotonic() - began < 30


# Signals.


@pytest.mark.parametrize(("given", "number"), [("SIGUSR1", 10), ("usr1", 10), (10, 10), ("TERM", 15)])
def test_a_signal_by_name_or_number_reaches_the_command(session: Session, given: Any, number: int) -> None:
    trap = f"trap 'echo got; exit 7' {number}; echo ready; while :; do sleep 0.05; done"
    execution = background(session, trap)
    printed(session, execution, "ready")
    assert post(session, execution, "signal", signal=given).status_code == 204
    result = result_of(session, execution)
    assert (result["exit_code"], result["stdout"], result["cancelled"]) == (7, "ready\ngot\n", False)


def test_a_command_that_dies_of_a_signal_says_which(session: Session) -> None:
    execution = background(session, ["sleep", "60"])
    assert post(session, execution, "signal", signal="SIGINT").status_code == 204
    result = result_of(session, execution)
    assert (result["signal"], result["exit_code"]) == ("SIGINT", 130)


def test_a_signal_to_a_command_in_a_shell_spares_the_shell(session: Session) -> None:
    session.output("state=kept", shell="spared")
    execution = str(start(session, "sleep 60; echo after", shell="spared", wait=0)["execution_id"])
    until(lambda: session.output("pgrep -xc sleep", shell=None) != "0\n")
    assert post(session, execution, "signal", signal="SIGKILL").status_code == 204
    assert "after" in result_of(session, execution)["stdout"]
    assert session.output("echo $state", shell="spared") == "kept\n"


@pytest.mark.parametrize("bad", ["SIGNOPE", "", 0, -1, 99, 1 << 40])
def test_what_is_no_signal_is_refused(session: Session, bad: Any) -> None:
    execution = background(session, "sleep 30")
    refused(post(session, execution, "signal", signal=bad), "signal")
    delete(session, execution)


# Input.


@pytest.mark.parametrize("shell", ["main", None])
def test_input_reaches_the_command_piece_by_piece_until_it_is_closed(
    session: Session, shell: str | None
) -> None:
    told = start(
        session, "while read -r x; do echo got:$x; done; echo over", stdin="pipe", wait=0, shell=shell
    )
    execution = told["execution_id"]
    send(session, execution, "one\n")
    printed(session, execution, "got:one")
    send(session, execution, "two\nthree")
    send(session, execution, "\n", close=True)
    assert result_of(session, execution)["stdout"] == "got:one\ngot:two\ngot:three\nover\n"


def test_input_may_be_any_bytes_and_closing_may_come_alone(session: Session) -> None:
    execution = background(session, "od -An -tx1", stdin="pipe")
    assert post(session, execution, "input", data_base64="AP+A").status_code == 204
    assert post(session, execution, "input", close=True).status_code == 204
    assert result_of(session, execution)["stdout"].split() == ["00", "ff", "80"]


def test_what_the_command_does_not_read_is_refused_whole_and_nothing_of_it_arrives(session: Session) -> None:
    session.output("mkfifo /tmp/gate")
    execution = background(session, "read -r go < /tmp/gate; sha256sum; echo", stdin="pipe")
    sent = 0
    while (answer := post(session, execution, "input", data="x" * 400_000)).status_code == 204:
        sent += 400_000
        assert sent <= 4 * MEBIBYTE
    assert problem(answer, 429, "stdin_full")["retryable"] is True
    problem(post(session, execution, "input", data="y" * MEBIBYTE, close=True), 429, "stdin_full")
    session.output("echo go > /tmp/gate; rm /tmp/gate", shell=None)
    until(lambda: post(session, execution, "input", data="z", close=True).status_code == 204)
    expected = session.output(f"(head -c {sent} /dev/zero | tr '\\0' x; printf z) | sha256sum")
    assert result_of(session, execution)["stdout"].split()[0] == expected.split()[0]


def test_input_without_an_open_stdin_is_a_conflict(session: Session) -> None:
    execution = background(session, "sleep 30")
    problem(post(session, execution, "input", data="x"), 409, "no_stdin")
    delete(session, execution)


def test_input_after_closing_is_a_conflict(session: Session) -> None:
    execution = background(session, "cat; sleep 30", stdin="pipe")
    send(session, execution, "", close=True)
    problem(post(session, execution, "input", data="x"), 409, "no_stdin")
    problem(post(session, execution, "input", close=True), 409, "no_stdin")
    delete(session, execution)


def test_the_word_pipe_itself_can_be_sent_as_base64(session: Session) -> None:
    assert session.output("cat", stdin_base64="cGlwZQ==") == "pipe"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"data": 1}, "data"),
        ({"data_base64": "?"}, "data_base64"),
        ({"data": "a", "data_base64": "YQ=="}, "body"),
        ({"data": "x" * (MEBIBYTE + 1)}, "body"),
        ({"close": "yes"}, "close"),
        ({"text": "x"}, "text"),
    ],
)
def test_bad_input_is_refused_by_name(session: Session, body: dict[str, Any], field: str) -> None:
    refused(post(session, "any", "input", **body), field)


# Terminals of executions.


def test_a_pty_has_the_size_that_was_asked_for_and_changes_it(session: Session) -> None:
    watching = "stty size; trap 'stty size' WINCH; while :; do sleep 0.05; done"
    told = start(session, watching, pty={"cols": 100, "rows": 30}, background=True)
    execution = told["execution_id"]
    assert (told["pty"], told["shell"]) == (True, None)
    printed(session, execution, "30 100")
    assert post(session, execution, "resize", cols=132, rows=43).status_code == 204
    printed(session, execution, "43 132")
    delete(session, execution)


def test_output_on_a_pty_is_one_stream_and_typing_is_input(session: Session) -> None:
    execution = background(session, "test -t 0 && test -t 2 && read -r x && echo said:$x >&2", pty={})
    send(session, execution, "hello\n")
    result = result_of(session, execution)
    assert (result["exit_code"], result["stderr"]) == (0, "")
    assert "said:hello\r\n" in result["stdout"]


def test_closing_the_input_of_a_pty_ends_what_reads_it(session: Session) -> None:
    execution = background(session, "cat; echo over", pty={})
    send(session, execution, "line\n", close=True)
    assert "over" in result_of(session, execution)["stdout"]


def test_closing_the_input_of_a_pty_in_the_middle_of_a_line_ends_what_reads_it(session: Session) -> None:
    execution = background(session, "cat; echo over", pty={}, timeout=3)
    send(session, execution, "no newline", close=True)
    result = result_of(session, execution)
    assert (result["timed_out"], "over" in result["stdout"]) == (False, True)


def test_resizing_without_a_terminal_is_a_conflict(session: Session) -> None:
    for fields in ({}, {"stdin": "pipe"}):
        execution = background(session, "sleep 30", **fields)
        problem(post(session, execution, "resize", cols=80, rows=24), 409, "no_terminal")
        delete(session, execution)


@pytest.mark.parametrize("size", [{"cols": 0}, {"rows": 1001}, {"cols": "80"}])
def test_impossible_sizes_are_refused(session: Session, size: dict[str, Any]) -> None:
    refused(post(session, "any", "resize", **size), next(iter(size)))
    refused(started(session, "true", pty=size), f"pty.{next(iter(size))}")


# Ending.


def test_deleting_kills_the_whole_tree_and_keeps_the_shells_state(session: Session) -> None:
    session.output("kept=yes; cd /tmp")
    family = "setsid sleep 81.5 & (setsid nohup sleep 82.5 >/dev/null 2>&1 &); echo begun; sleep 83.5"
    execution = start(session, family, wait=0)["execution_id"]
    printed(session, execution, "begun")
    delete(session, execution)
    assert session.output(["pgrep", "-f", "sleep 8[123].5"]) == ""
    told = get(session, execution)
    assert (told["status"], told["result"]["cancelled"], told["result"]["timed_out"]) == (
        "ended",
        True,
        False,
    )
    assert told["result"]["shell_restarted"] is False
    assert session.output("echo $kept; pwd; cd") == "yes\n/tmp\n"


def test_deleting_a_process_of_its_own_kills_its_whole_tree(session: Session) -> None:
    family = "setsid sleep 84.5 & (setsid nohup sleep 85.5 >/dev/null 2>&1 &); trap '' INT TERM; sleep 86.5"
    execution = background(session, family)
    until(lambda: session.output(["pgrep", "-fc", "^sleep 8[456].5"]) == "3\n")
    delete(session, execution)
    assert session.output(["pgrep", "-f", "sleep 8[456].5"]) == ""
    result = result_of(session, execution)
    assert (result["cancelled"], result["exit_code"], result["signal"]) == (True, 137, "SIGKILL")


def test_deleting_a_stubborn_command_ends_it_and_the_shell_works(session: Session) -> None:
    execution = start(session, "trap '' INT TERM; while :; do :; done", wait=0, shell="stubborn")
    delete(session, execution["execution_id"])
    assert result_of(session, execution["execution_id"])["cancelled"] is True
    assert session.output("echo works", shell="stubborn") == "works\n"


def test_deleting_a_queued_command_takes_it_out_of_the_queue(session: Session) -> None:
    first = background(session, "sleep 2; echo first", shell="queue")
    second, third = (start(session, f"echo {n} >> ran", background=True, shell="queue") for n in "23")
    assert (second["status"], third["status"]) == ("queued", "queued")
    delete(session, second["execution_id"])
    told = get(session, second["execution_id"])
    assert (told["status"], told["result"]["cancelled"], told["result"]["stdout"]) == ("ended", True, "")
    assert get(session, first)["status"] == "running"
    assert result_of(session, third["execution_id"])["exit_code"] == 0
    assert result_of(session, first)["stdout"] == "first\n"
    assert session.output("cat ran; rm ran") == "3\n"


def test_deleting_what_has_ended_changes_nothing(session: Session) -> None:
    execution = start(session, "echo done")["execution_id"]
    delete(session, execution)
    result = get(session, execution)["result"]
    assert (result["stdout"], result["cancelled"]) == ("done\n", False)


def test_who_waits_for_a_command_that_is_deleted_gets_its_result(session: Session) -> None:
    name = f"own-{secrets.token_hex(4)}"
    body, answers = {"execution_id": name, "shell": None}, []
    waiting = threading.Thread(target=lambda: answers.append(session.execute("echo a; sleep 60", **body)))
    waiting.start()
    until(lambda: any(one["execution_id"] == name and one["seq"] for one in listed(session)))
    delete(session, name)
    waiting.join(20)
    assert (answers[0].status_code, answers[0].json()["cancelled"], answers[0].json()["stdout"]) == (
        200,
        True,
        "a\n",
    )


def test_a_command_goes_on_when_who_waits_for_it_hangs_up(session: Session) -> None:
    """Whoever asks again under the same id waits for the same run, and gets its result."""
    body = {"command": "echo begun; sleep 3; echo done", "execution_id": "left"}
    before = detached_rows(session)
    with pytest.raises(requests.exceptions.ReadTimeout):
        session.stack.call("POST", f"/v1/sessions/{session.id}/execute", json=body, timeout=1.5)
    until(lambda: detached_rows(session) == before + 1, 5)
    assert get(session, "left")["status"] == "running"
    answer = session.execute(**body)
    assert (answer.json()["stdout"], answer.json()["cancelled"]) == ("begun\ndone\n", False)


# Names.


def test_the_same_id_and_body_join_the_same_execution(session: Session) -> None:
    fields: dict[str, Any] = {"execution_id": "once-1", "background": True}
    first, second = (start(session, "echo x >> joined; sleep 0.3", **fields) for _ in range(2))
    assert first["execution_id"] == second["execution_id"] == "once-1"
    assert first["started_at"] == second["started_at"]
    result_of(session, "once-1")
    assert start(session, "echo x >> joined; sleep 0.3", **fields)["status"] == "ended"
    assert session.output("cat joined; rm joined") == "x\n"


def test_the_same_id_with_another_body_is_a_conflict(session: Session) -> None:
    start(session, "true", execution_id="taken")
    problem(started(session, "touch never", execution_id="taken"), 409, "execution_exists")
    problem(session.execute("touch never", execution_id="taken"), 409, "execution_exists")
    assert session.output("ls never 2>/dev/null || echo none") == "none\n"


def test_an_id_spelt_with_escapes_is_the_same_id(session: Session) -> None:
    """JSON may write a name's letters as \\u005f: what is joined must still be the same command."""
    escaped = r'{"execution\u005fid": "escaped", "command": "echo %s"}'
    headers = {"Content-Type": "application/json"}
    first, second = (
        session.stack.call("POST", path_of(session), data=escaped % word, headers=headers) for word in "ab"
    )
    assert first.json()["result"]["stdout"] == "a\n"
    problem(second, 409, "execution_exists")


def test_the_same_id_in_another_session_is_another_execution(session: Session, opened: Open) -> None:
    other = opened()
    start(session, "echo mine", execution_id="both")
    start(other, "echo theirs", execution_id="both")
    assert [get(one, "both")["result"]["stdout"] for one in (session, other)] == ["mine\n", "theirs\n"]


def test_a_refused_command_leaves_its_id_free(session: Session) -> None:
    fields: dict[str, Any] = {"execution_id": "later", "cwd": "/workspace/later", "background": True}
    refused(started(session, "pwd", **fields), "cwd")
    problem(session.stack.call("GET", path_of(session, "later")), 404, "execution_not_found")
    session.output("mkdir later")
    start(session, "pwd", **fields)
    assert result_of(session, "later")["stdout"] == "/workspace/later\n"
    session.output("rmdir later")


@pytest.mark.parametrize("bad", ["", "a b", "terminal.main", "a/b", "é", "x" * 65, "a\n", 7])
def test_an_impossible_id_is_refused(session: Session, bad: Any) -> None:
    refused(started(session, "true", execution_id=bad), "execution_id")


def test_an_idempotency_key_joins_a_background_command(session: Session) -> None:
    headers = {"Idempotency-Key": secrets.token_hex(8)}
    ids = {
        start(session, "echo x >> keyed; sleep 0.3", background=True, headers=headers)["execution_id"]
        for _ in range(3)
    }
    assert len(ids) == 1
    result_of(session, ids.pop())
    answer = started(session, "echo other", background=True, headers=headers)
    problem(answer, 409, "idempotency_conflict")
    assert session.output("cat keyed; rm keyed") == "x\n"


def test_an_idempotency_key_joins_a_stream(session: Session) -> None:
    headers = {"Idempotency-Key": secrets.token_hex(8), "Accept": "application/x-ndjson"}
    texts = [
        started(session, "echo x >> streamed; date +%N", stream=True, headers=headers).text for _ in range(2)
    ]
    assert texts[0] == texts[1] and '"end"' in texts[0]
    assert session.output("cat streamed; rm streamed") == "x\n"


def test_ten_at_once_under_one_id_run_once(session: Session) -> None:
    answers: list[dict[str, Any]] = []
    fields: dict[str, Any] = {"execution_id": "crowd", "background": True}
    threads = [
        threading.Thread(
            target=lambda: answers.append(start(session, "echo x >> crowd; sleep 0.2", **fields))
        )
        for _ in range(10)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(answers) == 10 and len({answer["started_at"] for answer in answers}) == 1
    result_of(session, "crowd")
    assert session.output("cat crowd; rm crowd") == "x\n"


# Refusals.


@pytest.mark.parametrize("how", [{"background": True}, {"wait": 5}, {"stream": True}, {}])
@pytest.mark.parametrize("shell", ["main", None])
def test_a_directory_that_is_not_there_is_refused_at_once(
    session: Session, how: dict[str, Any], shell: str | None
) -> None:
    refused(started(session, "pwd", cwd="/nowhere", shell=shell, **how), "cwd")


def test_a_command_whose_shell_stays_busy_is_refused_to_who_waits_for_it(session: Session) -> None:
    """It ends without ever having run: that is no result, and who started it must learn why."""
    blocking = background(session, "sleep 30", shell="busy")
    for answer in (
        session.execute("true", shell="busy", timeout=0.2),
        session.execute("true", shell="busy", timeout=0.2, wait=20),
        started(session, "true", shell="busy", timeout=0.2),
    ):
        problem(answer, 429, "shell_busy")
    delete(session, blocking)


def test_a_background_command_whose_shell_stayed_busy_says_so(session: Session) -> None:
    blocking = background(session, "sleep 30", shell="busier")
    execution = background(session, "true", shell="busier", timeout=0.2)
    headers = {"Accept": "application/x-ndjson"}
    text = session.stack.call("GET", path_of(session, execution, "events"), headers=headers).text
    assert '"problem"' in text and '"shell_busy"' in text
    told = get(session, execution)
    assert (told["status"], told["result"], told["refused"]) == ("ended", None, "shell_busy")
    delete(session, blocking)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"background": "yes"}, "background"),
        ({"wait": -1}, "wait"),
        ({"wait": 3601}, "wait"),
        ({"wait": True}, "wait"),
        ({"stream": True, "background": True}, "body"),
        ({"stream": True, "wait": 1}, "body"),
        ({"kill_on_disconnect": True}, "body"),
        ({"kill_on_disconnect": True, "background": True}, "body"),
        ({"pty": {}, "shell": "main"}, "body"),
        ({"pty": {}, "language": "python"}, "body"),
        ({"pty": {}, "stdin": "text"}, "body"),
        ({"pty": True}, "pty"),
        ({"stdin": "pipe", "stdin_base64": ""}, "body"),
        ({"timeout": 3601, "background": True}, "timeout"),
        ({"backgroud": True}, "backgroud"),
    ],
)
def test_bad_fields_are_refused_by_name(session: Session, fields: dict[str, Any], field: str) -> None:
    refused(started(session, "true", **fields), field)
    refused(session.execute("true", **fields), field)


@pytest.mark.parametrize("wait", ["-1", "301", "nan", "soon", "1e999"])
def test_a_wait_that_is_none_is_refused(session: Session, wait: str) -> None:
    refused(session.stack.call("GET", path_of(session, "any"), params={"wait": wait}), "wait")


ROUTES: list[tuple[str, str, dict[str, Any] | None]] = [
    ("GET", "", None),
    ("DELETE", "", None),
    ("POST", "signal", {"signal": "SIGINT"}),
    ("POST", "input", {"data": "x"}),
    ("POST", "resize", {"cols": 80, "rows": 24}),
    ("GET", "log", None),
    ("GET", "events", None),
]


@pytest.mark.parametrize(("method", "route", "body"), ROUTES)
def test_an_unknown_execution_is_not_found(
    session: Session, method: str, route: str, body: dict[str, Any] | None
) -> None:
    for name in ("nope", "a" * 300, "terminal.main"):
        answer = session.stack.call(method, path_of(session, name, route), json=body)
        problem(answer, 404, "execution_not_found")


@pytest.mark.parametrize(("method", "route", "body"), ROUTES)
def test_anothers_execution_is_not_found(
    session: Session, stranger: str, method: str, route: str, body: dict[str, Any] | None
) -> None:
    execution = background(session, "sleep 30", stdin="pipe")
    answer = session.stack.call(method, path_of(session, execution, route), key=stranger, json=body)
    problem(answer, 404, "session_not_found")
    assert get(session, execution)["status"] == "running"
    delete(session, execution)


def test_anothers_session_starts_lists_and_tickets_nothing(session: Session, stranger: str) -> None:
    execution = start(session, "true")["execution_id"]
    tickets = f"/v1/sessions/{session.id}/tickets"
    for method, path, body in (
        ("GET", path_of(session), None),
        ("POST", path_of(session), {"command": "true", "background": True}),
        ("POST", path_of(session), {"command": "true", "stream": True}),
        ("POST", f"/v1/sessions/{session.id}/execute", {"command": "true", "wait": 1}),
        ("POST", tickets, {"for": "events", "execution_id": execution}),
    ):
        problem(session.stack.call(method, path, key=stranger, json=body), 404, "session_not_found")


@pytest.fixture(scope="module")
def stranger(stack: Stack) -> str:
    return stack.new_key("stranger")


@pytest.mark.parametrize(
    ("route", "body"),
    [("signal", {"signal": 2}), ("input", {"data": "x"}), ("resize", {"cols": 80, "rows": 24})],
)
def test_what_has_ended_cannot_be_reached(session: Session, route: str, body: dict[str, Any]) -> None:
    for fields in ({}, {"stdin": "pipe"}, {"pty": {}}):
        execution = start(session, "true", **fields)["execution_id"]
        problem(post(session, execution, route, **body), 409, "execution_ended")


def test_a_queued_command_cannot_be_reached_yet(session: Session) -> None:
    blocking = background(session, "sleep 30", shell="early")
    execution = background(session, "cat", shell="early", stdin="pipe")
    body = problem(post(session, execution, "input", data="x"), 429, "stdin_full")
    assert body["retryable"] is True
    delete(session, execution)
    delete(session, blocking)


# What a session may run, and what is left of it.


def test_a_session_at_its_limit_says_which_and_recovers(opened: Open) -> None:
    session = opened()
    ids = [background(session, "sleep 60") for _ in range(16)]
    answer = started(session, "true", background=True)
    body = problem(answer, 429, "too_many_executions")
    assert (body["allowed"], body["scope"], body["retryable"]) == (16, "session", True)
    assert "Retry-After" in answer.headers
    problem(started(session, "true", stream=True), 429, "too_many_executions")
    delete(session, ids[0])
    assert start(session, "echo again", shell=None)["result"]["stdout"] == "again\n"


def test_nothing_is_left_of_background_commands_when_their_session_is_closed(stack: Stack) -> None:
    session = open_in(stack)
    container, ids = session.container, [background(session, "sleep 600") for _ in range(3)]
    pid = docker("inspect", "-f", "{{.State.Pid}}", container).strip()
    assert detached_rows(session) == 3
    session.close()
    ended(stack.call("GET", path_of(session, ids[0])), "closed")
    assert detached_rows(session) == 0
    assert container not in docker("ps", "-a", "--format", "{{.Names}}").split()
    with pytest.raises(FileNotFoundError), open(f"/proc/{pid}/stat"):
        pass


# On a server with small limits.


@pytest.fixture(scope="module")
def small() -> Iterator[Stack]:
    with running(SANDBOX_TENANT_EXECUTIONS_MAX="4", SANDBOX_WEB_WORKERS="2") as stack:
        yield stack


@pytest.fixture
def opened_small(small: Stack) -> Iterator[Open]:
    made: list[Session] = []

    def open_one(**wish: Any) -> Session:
        made.append(open_in(small, **wish))
        return made[-1]

    yield open_one
    for session in made:
        session.close()


def waited_for(session: Session) -> None:
    """A call that somebody waits for, until the execution is deleted."""
    session.execute("sleep 50", shell=None, execution_id="waited", timeout=60)


def test_a_tenant_at_its_limit_says_which_across_sessions_and_workers(opened_small: Open) -> None:
    one, other = opened_small(), opened_small()
    ids = [background(one, "sleep 60"), background(one, "sleep 60"), background(other, "sleep 60")]
    waiting = threading.Thread(target=waited_for, args=(other,))
    waiting.start()
    until(lambda: len(listed(other)) == 2)
    for answer in (
        other.execute("true"),
        started(one, "true", background=True),
        started(one, "true", stream=True),
        other.execute("true", wait=1),
    ):
        body = problem(answer, 429, "too_many_executions")
        assert (body["allowed"], body["scope"], body["retryable"]) == (4, "tenant", True)
    delete(other, "waited")
    waiting.join(20)
    delete(one, ids[0])
    assert one.output("echo room") == "room\n"


def test_another_tenants_commands_do_not_count(small: Stack, opened_small: Open) -> None:
    session, key = opened_small(), small.new_key("neighbour")
    for _ in range(4):
        background(session, "sleep 60")
    other = small.call("POST", "/create_session", key=key).json()["session_id"]
    answer = small.call("POST", f"/v1/sessions/{other}/execute", key=key, json={"command": "echo mine"})
    assert answer.json()["output"] == "mine\n"
    small.call("DELETE", f"/v1/sessions/{other}", key=key)


def test_commands_that_ended_unnoticed_are_counted_out(opened_small: Open) -> None:
    session = opened_small()
    for _ in range(4):
        background(session, "true")
    until(lambda: all(one["status"] == "ended" for one in listed(session)))
    until(lambda: session.execute("true").status_code == 200, 3)


def test_commands_that_ended_unnoticed_are_counted_out_beside_those_that_run(opened_small: Open) -> None:
    """Three have ended, one is being waited for: there is room for three."""
    session = opened_small()
    for _ in range(3):
        background(session, "true")
    waiting = threading.Thread(target=waited_for, args=(session,))
    waiting.start()
    until(lambda: [one["status"] for one in listed(session)] == ["ended"] * 3 + ["running"])
    until(lambda: started(session, "true", background=True).status_code == 201, 4)
    delete(session, "waited")
    waiting.join(20)


def test_a_refusal_is_not_counted(opened_small: Open) -> None:
    session = opened_small()
    for _ in range(6):
        refused(started(session, "true", background=True, cwd="/nowhere"), "cwd")
    assert detached_rows(session) == 0
    assert session.output("echo room") == "room\n"


def test_sessions_with_background_commands_end_with_their_leases(opened_small: Open) -> None:
    """What runs keeps its session; what has run does not. Five sessions, so that the waiting is shared."""
    unseen = opened_small(timeout=2)
    background(unseen, "true")
    busy = opened_small(timeout=2)
    runs = background(busy, "sleep 5; echo done")
    waited = opened_small(timeout=2)
    assert waited.execute("true", wait=20, timeout=60).status_code == 200
    seen = opened_small(timeout=2)
    assert result_of(seen, background(seen, "true"))["exit_code"] == 0
    streamed = opened_small(timeout=2)
    assert "event: end" in started(streamed, "true", stream=True).text
    time.sleep(2.5)
    over = [one.get().status_code for one in (waited, seen, streamed)]
    assert result_of(busy, runs)["stdout"] == "done\n"
    assert over == [410, 410, 410]
    until(lambda: unseen.get().status_code == 410, 8)  # the reaper asks every five seconds
