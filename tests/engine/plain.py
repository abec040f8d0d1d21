"""A session over plain HTTP, as curl would call it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import requests
from stack import Stack


@dataclass(frozen=True)
class Session:
    """An open session, called as curl would."""

    stack: Stack
    id: str
    told: dict[str, Any]

    def execute(
        self, command: Any, headers: dict[str, str] | None = None, **fields: Any
    ) -> requests.Response:
        body = {"command": command, **fields}
        return self.stack.call("POST", f"/v1/sessions/{self.id}/execute", json=body, headers=headers or {})

    def output(self, command: Any, **fields: Any) -> str:
        answer = self.execute(command, **fields)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["output"])

    def get(self) -> requests.Response:
        return self.stack.call("GET", f"/v1/sessions/{self.id}")

    def close(self) -> requests.Response:
        return self.stack.call("DELETE", f"/v1/sessions/{self.id}")

    @property
    def container(self) -> str:
        return self.stack.container_of(self.id)


Open = Callable[..., Session]


@contextlib.contextmanager
def opening(stack: Stack) -> Iterator[Open]:
    """Opens sessions, and closes them at the end."""
    made: list[Session] = []

    def open_one(**wish: Any) -> Session:
        made.append(open_in(stack, **wish))
        return made[-1]

    yield open_one
    for session in made:
        session.close()


def open_in(stack: Stack, **wish: Any) -> Session:
    answer = stack.call("POST", "/create_session", json=wish)
    assert answer.status_code == 200, answer.text
    return Session(stack, answer.json()["session_id"], answer.json())
