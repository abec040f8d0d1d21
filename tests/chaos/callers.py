"""Callers who know what they were promised, and notice every promise that is broken.

Each opens a session, runs numbered commands in it, writes files, takes snapshots, puts it to sleep, asks
again under the same Idempotency-Key when an answer says that this may help, and compares what the session
remembers with what was acknowledged.
"""

from __future__ import annotations

import random
import secrets
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import requests
from stack import Stack

from server.errors import CAUSES

DEADLINE = 60.0  # of one call, whatever happens to the server meanwhile
PATIENCE = 120.0  # until a call that is asked again and again has been answered
_PAUSE = 0.2
_SLACK = 2.0


class Ended(Exception):
    """The session is over, and the server said why."""


@dataclass
class World:
    """The server, what is being done to it, and what was found wrong."""

    stack: Stack
    over: threading.Event = field(default_factory=threading.Event)
    wrong: list[str] = field(default_factory=list)
    codes: Counter[str] = field(default_factory=Counter)
    done: Counter[str] = field(default_factory=Counter)
    victims: set[str] = field(default_factory=set)
    all_may_die: bool = False
    cuts: list[tuple[float, float]] = field(default_factory=list)
    live: dict[str, str] = field(default_factory=dict)  # sessions of callers, and their tenants' keys

    def blame(self, what: str) -> None:
        self.wrong.append(f"{time.strftime('%H:%M:%S')} {what}")

    def may_have_been_cut(self, began: float) -> bool:
        """Whether the web was down at some time since then."""
        return any(end + _SLACK >= began for _, end in self.cuts)


@dataclass
class Caller:
    world: World
    key: str
    random: random.Random

    def run(self) -> None:
        """Session after session, until it is over."""
        while not self.world.over.is_set():
            try:
                self._live_through_one()
            except Ended:
                self.world.done["sessions that ended early"] += 1
            except AssertionError as exc:
                self.world.blame(str(exc))
                return

    def _live_through_one(self) -> None:
        token = secrets.token_hex(8)
        session = self._open(token)
        log: list[str] = []
        try:
            fresh = self._execute(session, f'ls -A; echo "<$mine>"; export mine={token}; echo {token} > who')
            assert fresh == "<>\n", f"a new session was not empty: {fresh!r}"
            for number in range(self.random.randint(3, 12)):
                self._step(session, token, number, log)
                self.random.choice([self._send, self._keep, self._sleep, *3 * [self._rest]])(session, token)
            remembered = self._execute(session, "cat who log; echo $mine")
            expected = "".join(f"{line}\n" for line in [token, *log, token])
            assert remembered == expected, f"acknowledged {expected!r}, remembered {remembered!r}"
            self._check_walls(session)
        finally:
            self.world.live.pop(session, None)
        self._ask("DELETE", f"/v1/sessions/{session}", session)
        self.world.done["sessions"] += 1

    def _open(self, token: str) -> str:
        answer = self._ask("POST", "/v1/sessions", None, json={"metadata": {"token": token}})
        session = str(answer.json()["session_id"])
        assert session not in self.world.live, f"session {session} was given twice"
        self.world.live[session] = self.key
        return session

    def _step(self, session: str, token: str, number: int, log: list[str]) -> None:
        """Done once, however often it is asked for."""
        line = f"{token}-{number}"
        if self.random.random() < 0.2:
            body = {"command": f"sleep 0.2; echo {line} >> log; cat who", "background": True}
            told = self._ask("POST", f"/v1/sessions/{session}/executions", session, json=body).json()
            path = f"/v1/sessions/{session}/executions/{told['execution_id']}?wait=20"
            said = self._ask("GET", path, session).json()["result"]["output"]
        else:
            said = self._execute(session, f"echo {line} >> log; cat who")
        assert said == f"{token}\n", f"{token} was told {said!r}"
        log.append(line)
        self.world.done["commands"] += 1

    def _send(self, session: str, token: str) -> None:
        """A file: what was acknowledged is there, whole."""
        path = f"/v1/sessions/{session}/files/content?path=sent"
        content = (token + secrets.token_hex(8)).encode() * 1000
        self._ask("PUT", path, session, data=content)
        found = self._ask("GET", path, session).content
        assert found == content, f"{token} sent {content[:32]!r} and has {found[:32]!r}"
        self.world.done["files"] += 1

    def _keep(self, session: str, token: str) -> None:
        """A snapshot, which holds what the session held."""
        kept = self._ask("POST", f"/v1/sessions/{session}/snapshots", session, json={}).json()["snapshot_id"]
        self._ask("POST", f"/v1/sessions/{session}/restore", session, json={"snapshot_id": kept})
        self._ask("DELETE", f"/v1/snapshots/{kept}", session)
        self.world.done["snapshots"] += 1

    def _sleep(self, session: str, token: str) -> None:
        """The next command wakes it."""
        cold = self.random.random() < 0.5
        self._ask("POST", f"/v1/sessions/{session}/pause", session, json={"cold": cold})
        self.world.done["cold" if cold else "paused"] += 1

    def _rest(self, session: str, token: str) -> None:
        """Nothing besides."""

    def _execute(self, session: str, command: str) -> str:
        answer = self._ask("POST", f"/v1/sessions/{session}/execute", session, json={"command": command})
        return str(answer.json()["output"])

    def _check_walls(self, session: str) -> None:
        """Nobody else's key opens it."""
        for key in {key for key in list(self.world.live.values()) if key != self.key}:
            answer = self._call("GET", f"/v1/sessions/{session}", key, {})
            if answer is not None and answer.status_code < 500:
                assert answer.status_code == 404, f"a stranger got {answer.status_code} of {session}"

    def _ask(self, method: str, path: str, session: str | None, **options: Any) -> requests.Response:
        """Until it is answered; a problem that a retry cannot help ends the session, or is a fault."""
        headers = {"Idempotency-Key": secrets.token_hex(8)} if method == "POST" else {}
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            answer = self._call(method, path, self.key, headers, **options)
            if answer is not None and (answer.status_code < 400 or _is_gone(method, answer)):
                return answer
            if answer is not None and self._is_final(method, answer, session):
                raise Ended
            time.sleep(_PAUSE)
        raise AssertionError(f"{method} {path} was never answered")

    def _call(
        self, method: str, path: str, key: str, headers: dict[str, str], **options: Any
    ) -> requests.Response | None:
        """None if the connection was cut: by us, or this is a fault."""
        began = time.monotonic()
        try:
            answer = self.world.stack.call(method, path, key, headers=headers, timeout=DEADLINE, **options)
        except requests.Timeout:
            raise AssertionError(f"{method} {path}: no answer within {DEADLINE:.0f} s") from None
        except requests.RequestException as exc:
            assert self.world.may_have_been_cut(began), f"{method} {path}: {exc}"
            self.world.codes["cut"] += 1
            return None
        self.world.codes[_kind(answer)] += 1
        return answer

    def _is_final(self, method: str, answer: requests.Response, session: str | None) -> bool:
        problem = answer.json()
        told = f"{method} {answer.url}: {problem}"
        assert answer.headers["Content-Type"] == "application/problem+json", told
        if problem["code"] == "session_ended":
            known = session in self.world.victims or self.world.all_may_die
            assert method == "DELETE" or known, f"ended for no reason: {told}"
            assert problem["cause"] in CAUSES, told
            return True
        assert problem["retryable"] or answer.status_code == 409, told
        return False


def _is_gone(method: str, answer: requests.Response) -> bool:
    """What was to be removed was removed when it was asked for before, and nobody heard of it."""
    return method == "DELETE" and answer.status_code == 404


def _kind(answer: requests.Response) -> str:
    return str(answer.status_code) if answer.status_code < 400 else str(answer.json().get("code"))
