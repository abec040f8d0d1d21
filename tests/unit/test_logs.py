"""Log lines: one record is one line, whatever a caller put into it, and no secret or command is in it."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from web_in_process import Web

from server.config import Config
from server.logs import configure_logging

SWITCHES = ("_srcfile", "logThreads", "logProcesses", "logMultiprocessing")
FORGED = 'x\n2026-01-01 INFO forged\r\x1b[2J\x00\x7f\x85\u2028"quoted"'


@pytest.fixture
def logged(
    config: Config, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[[str], Callable[[], str]]]:
    """Turns logging on in a format, and gives what was written since."""
    root = logging.getLogger()
    before = root.handlers[:], root.level
    switches = {name: getattr(logging, name) for name in SWITCHES}

    def on(log_format: str) -> Callable[[], str]:
        configure_logging(replace(config, log_format=log_format))
        return lambda: capsys.readouterr().err

    yield on
    root.handlers[:], root.level = before[0], before[1]
    for name, value in switches.items():
        setattr(logging, name, value)


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_control_bytes_in_a_message_or_field_are_escaped(
    logged: Callable[[str], Callable[[], str]], log_format: str
) -> None:
    written = logged(log_format)
    logging.getLogger("sandbox.test").info("said %s", FORGED, extra={"fields": {"session": FORGED}})
    line = written()
    assert line.count("\n") == 1 and line.endswith("\n")
    assert [char for char in line[:-1] if not char.isprintable()] == []


def test_a_json_line_has_time_level_logger_message_and_fields(
    logged: Callable[[str], Callable[[], str]],
) -> None:
    written = logged("json")
    logging.getLogger("sandbox.test").warning("hello", extra={"fields": {"tenant": "t", "session": FORGED}})
    line = json.loads(written())
    assert (line["level"], line["logger"], line["message"], line["tenant"]) == (
        "warning",
        "sandbox.test",
        "hello",
        "t",
    )
    assert line["session"] == FORGED
    assert line["time"].endswith("+00:00")


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_an_exception_is_told_with_its_trace(
    logged: Callable[[str], Callable[[], str]], log_format: str
) -> None:
    written = logged(log_format)
    try:
        raise ValueError("x\x1b[2J")
    except ValueError:
        logging.getLogger("sandbox.test").exception("failed")
    text = written()
    assert "ValueError" in text and "test_logs.py" in text
    assert "\x1b" not in text


def test_a_request_is_logged_with_its_id_tenant_and_session_but_neither_key_nor_command(
    logged: Callable[[str], Callable[[], str]], web: Web
) -> None:
    written = logged("json")
    body = {"session_id": "f" * 32, "command": "echo topsecret", "stdin": "hidden"}
    answer = web.post("/execute", body, X_Request_Id="mine-1")
    text = written()
    line = json.loads(text.splitlines()[-1])
    assert (line["request_id"], line["tenant"], line["session"]) == ("mine-1", "default", "f" * 32)
    assert (line["route"], line["status"], answer.status_code) == ("/execute", 404, 404)
    assert not any(word in text for word in ("topsecret", "hidden", web.key, web.key[20:]))


def test_a_path_of_a_caller_cannot_forge_a_line(logged: Callable[[str], Callable[[], str]], web: Web) -> None:
    written = logged("console")
    web.get("/v1/sessions/x%0A2026-01-01T00:00:00Z INFO forged")
    assert written().count("\n") == 1
