"""What a command leaves in /workspace/artifacts, and that the disk is full, is told with every result."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import requests
from plain import Session

COMMAND = "mkdir -p artifacts/d; echo -n {0} > artifacts/d/{0}.png"


def told(result: dict[str, Any]) -> list[str]:
    return [artifact["path"] for artifact in result["artifacts"]]


def waited(session: Session, command: str) -> Any:
    return session.execute(command).json()


def in_the_background(session: Session, command: str) -> Any:
    started = session.execute(command, background=True).json()
    where = f"/v1/sessions/{session.id}/executions/{started['execution_id']}?wait=20"
    return session.stack.call("GET", where).json()["result"]


def streamed(session: Session, command: str) -> Any:
    answer: requests.Response = session.stack.call(
        "POST",
        f"/v1/sessions/{session.id}/execute",
        json={"command": command, "stream": True},
        headers={"Accept": "application/x-ndjson"},
    )
    return json.loads(answer.text.splitlines()[-1])["result"]


def in_python(session: Session, command: str) -> Any:
    return session.execute(f"import os; os.system({command!r})", language="python").json()


@pytest.mark.parametrize("way", [waited, in_the_background, streamed, in_python])
def test_every_way_to_run_a_command_tells_its_artifacts(session: Session, way: Any) -> None:
    name = way.__name__
    result = way(session, COMMAND.format(name))
    path = f"artifacts/d/{name}.png"
    assert result["artifacts"] == [
        {
            "path": path,
            "size": len(name),
            "mime": "image/png",
            "sha256": hashlib.sha256(name.encode()).hexdigest(),
            "url": f"/v1/sessions/{session.id}/files/content?path={path}",
        }
    ]
    assert (result["disk_full"], "artifacts_truncated" in result) == (False, False)
    assert told(way(session, "true")) == []


def test_a_repeated_request_is_told_the_same_artifacts(session: Session) -> None:
    command = "mkdir -p artifacts; date +%N > artifacts/now"
    first = session.execute(command, headers={"Idempotency-Key": "artifacts"}).json()
    session.output("rm artifacts/now")
    assert session.execute(command, headers={"Idempotency-Key": "artifacts"}).json() == first
    assert told(first) == ["artifacts/now"]


def test_names_of_any_bytes_survive_in_the_url(session: Session) -> None:
    names = [b"\xff\n&=+ %41#?.txt", "é ☃.tar.gz".encode()]
    session.output("mkdir -p artifacts")
    code = f"[open(b'artifacts/' + name, 'wb').write(name) for name in {names!r}]"
    result = session.execute(["python3", "-c", code]).json()
    found = {artifact["mime"]: artifact for artifact in result["artifacts"]}
    strange, plain = found["text/plain"], found["application/gzip"]
    assert plain["path"] == "artifacts/é ☃.tar.gz" and "path_base64" not in plain
    assert base64.b64decode(strange["path_base64"]) == b"artifacts/" + names[0]
    for artifact, name in ((strange, names[0]), (plain, names[1])):
        query = parse_qs(urlsplit(artifact["url"]).query, encoding="latin-1", strict_parsing=True)
        assert query["path"][0].encode("latin-1") == b"artifacts/" + name
        assert session.stack.call("GET", artifact["url"]).content == name


def test_more_than_a_hundred_are_not_all_told(session: Session) -> None:
    result = session.execute("mkdir artifacts/many; touch artifacts/many/{1..150}").json()
    assert (len(result["artifacts"]), result["artifacts_truncated"]) == (100, True)
    session.output("rm -r artifacts/many")


@pytest.mark.parametrize("place", ["/tmp", "/dev/shm"])
def test_a_full_disk_is_told_until_there_is_room(session: Session, place: str) -> None:
    full = session.execute(f"cat /dev/zero > {place}/big").json()
    assert (full["exit_code"], full["disk_full"]) == (1, True)
    assert "No space left" in full["stderr"]
    assert session.execute(f"rm {place}/big; false").json()["disk_full"] is False
