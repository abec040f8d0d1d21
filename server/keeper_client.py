"""How the web side asks the keeper: one request and one answer, a JSON line each, over a unix socket."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

from server import errors

ANSWER_LIMIT = 1 << 20
_OPEN_SECONDS = 90.0
_OTHER_SECONDS = 30.0
_CHECK_SECONDS = 5.0


class KeeperClient:
    def __init__(self, path: Path) -> None:
        self._path = str(path)

    def open(
        self, session_id: str, image: str, memory: int, cpus: float, env: dict[str, str], first: bool
    ) -> None:
        """The session runs when this returns. Asked twice at once it opens one, as the first wants it."""
        wanted = {"session": session_id, "image": image, "memory": memory, "cpus": cpus, "env": env}
        self._ask({"verb": "open", "first": first, **wanted}, _OPEN_SECONDS)

    def close(self, sandbox: str) -> None:
        self._ask({"verb": "close", "sandbox": sandbox}, _OTHER_SECONDS)

    def examine(self, session_id: str) -> str | None:
        """Why the session's sandbox is dead (the session has then been ended), or None if it lives."""
        cause = self._ask({"verb": "examine", "session": session_id}, _OTHER_SECONDS).get("cause")
        return cause if isinstance(cause, str) else None

    def check(self) -> dict[str, Any]:
        """What the keeper knows of the engine, the images and the wall."""
        return self._ask({"verb": "check"}, _CHECK_SECONDS)

    def _ask(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        try:
            answer = self._exchange(request, seconds)
        except (OSError, ValueError) as exc:
            raise errors.KeeperUnavailable(
                "Sandboxes cannot be opened or closed now: the keeper does not answer. Try again soon."
            ) from exc
        if answer.get("ok") is True:
            return answer
        raise errors.EngineUnavailable(str(answer.get("detail", "The Docker Engine refused.")))

    def _exchange(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(seconds)
            connection.connect(self._path)
            connection.sendall(json.dumps(request).encode() + b"\n")
            with connection.makefile("rb") as stream:
                line = stream.readline(ANSWER_LIMIT)
        answer = json.loads(line)
        if not isinstance(answer, dict):
            raise ValueError("not an answer")
        return answer
