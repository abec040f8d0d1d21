"""A server that is told to stop: streams and terminals are let go at once, what runs is not harmed."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator

import pytest
import requests
import websocket
from plain import Session, open_in
from stack import Stack, running

COUNT = "for i in $(seq 30); do echo $i; sleep 0.2; done; echo whole >/workspace/end"


@pytest.fixture
def stopping() -> Iterator[Stack]:
    with running() as stack:
        yield stack


def followed(session: Session) -> requests.Response:
    body = {"command": COUNT, "stream": True, "kill_on_disconnect": True, "execution_id": "count"}
    path = f"/v1/sessions/{session.id}/executions"
    headers = {"Accept": "application/x-ndjson"}
    return session.stack.call("POST", path, json=body, stream=True, headers=headers)


def restart(stack: Stack) -> float:
    """How long the stop took."""
    began = time.monotonic()
    stack.kill("web", signal.SIGTERM)
    took = time.monotonic() - began
    stack.start_web()
    stack.wait_ready()
    return took


def test_streams_and_terminals_do_not_hold_up_a_stop_and_lose_nothing(stopping: Stack) -> None:
    """Also a command that was to die with its reader goes on: its reader has not gone away, we have."""
    session = open_in(stopping)
    url = f"ws{stopping.url[4:]}/v1/sessions/{session.id}/terminal"
    terminal = websocket.create_connection(url, timeout=20, header={"X-API-Key": stopping.key})
    stream = followed(session)
    events = (json.loads(line) for line in stream.iter_lines(chunk_size=None))
    seen = [next(events) for _ in range(3)]
    assert restart(stopping) < 15
    seen += events
    stream.close()
    assert "end" not in {event["event"] for event in seen}
    codes = [data for opcode, data in frames(terminal) if opcode == websocket.ABNF.OPCODE_CLOSE]
    assert codes == [(1012).to_bytes(2, "big") + b"restart"]
    rest = session.stack.call(
        "GET",
        f"/v1/sessions/{session.id}/executions/count/events",
        params={"after": seen[-1]["seq"]},
        headers={"Accept": "application/x-ndjson"},
    )
    seen += [json.loads(line) for line in rest.text.splitlines()]
    text = "".join(str(event["text"]) for event in seen if event["event"] == "stdout")
    assert text == "".join(f"{number}\n" for number in range(1, 31))
    assert session.output("cat /workspace/end") == "whole\n"


def frames(terminal: websocket.WebSocket) -> Iterator[tuple[int, bytes]]:
    while True:
        opcode, data = terminal.recv_data()
        yield opcode, data
        if opcode == websocket.ABNF.OPCODE_CLOSE:
            terminal.shutdown()
            return
