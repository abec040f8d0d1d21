"""Requests made up from the server's own description, right and wrong, and what every answer must be like.

The tests send a few for each route. For the long run, against a server of its own:
python tests/hostile/fuzzing.py --examples 2000
"""

from __future__ import annotations

import argparse
import functools
import random
import signal
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hypothesis
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, strategies
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
)

for _place in (1, 2):
    sys.path.insert(0, str(Path(__file__).resolve().parents[_place]))  # when it is run by itself

from stack import Stack, running  # noqa: E402

from server.api.problems import STATUSES  # noqa: E402

CHECKS = [
    not_a_server_error,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
# Small, so that whatever is made up ends soon.
SETTINGS = {
    "SANDBOX_TIMEOUT": "1",
    "SANDBOX_TIMEOUT_MAX": "2",
    "SANDBOX_SESSIONS_MAX": "3",
    "SANDBOX_SNAPSHOTS_MAX": "5",
    "SANDBOX_FAILURE_LIMIT": "1000000/minute",
}
_ENDLESS = ("/watch", "/terminal")  # these are sent to no real session: they would be followed for ever
_ENDING = {"sessions_delete", "sessions_cleanup"}  # nor these: the others need it
_ONCE = {"admin_doctor_examine"}  # it takes nothing that could be wrong, and seconds
_KEY_HEADERS = {"authorization", "x-api-key"}  # test_hostile_keys.py has these
_SECONDS = 60


@dataclass
class Fuzz:
    stack: Stack
    key: str | None
    examples: int
    seed: int | None = None  # None: the same requests every time
    answered: Counter[tuple[str, int]] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def run(self) -> None:
        schema = schemathesis.openapi.from_url(f"{self.stack.url}/openapi.json")
        with requests.Session() as wire:
            for result in schema.get_all_operations():
                try:
                    self._operation(result.ok(), wire)
                except (AssertionError, FailureGroup) as exc:  # the other routes are looked at as well
                    self.faults.append(f"{result.ok().label}: {exc!r}")
        self.stack.call("DELETE", "/v1/workspaces/fuzzed")  # with the session that was made to look into it

    def _operation(self, operation: Any, wire: requests.Session) -> None:
        modes = [schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE]
        cases = strategies.one_of(*(operation.as_strategy(generation_mode=mode) for mode in modes))
        settings = hypothesis.settings(
            max_examples=1 if _name(operation) in _ONCE else self.examples,
            deadline=None,
            database=None,
            derandomize=self.seed is None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )

        @settings
        @hypothesis.given(case=cases, real=strategies.booleans())
        def send(case: Any, real: bool) -> None:
            self._send(case, real, wire)

        (send if self.seed is None else hypothesis.seed(self.seed)(send))()

    def _send(self, case: Any, real: bool, wire: requests.Session) -> None:
        label = _name(case.operation)
        if real and not case.path.endswith(_ENDLESS) and label not in _ENDING:
            _make_real(case, self._things(label))
        if isinstance((case.query or {}).get("wait"), (int, float)):
            case.query["wait"] = min(case.query["wait"], 1)  # in vain, most often
        for name in [name for name in case.headers or {} if name.lower() in _KEY_HEADERS]:
            del case.headers[name]
        headers = {} if self.key is None else {"Authorization": f"Bearer {self.key}"}
        answer = case.call(session=wire, headers=headers, timeout=_SECONDS)
        self.answered[label, answer.status_code] += 1
        case.validate_response(answer, checks=CHECKS)
        _check_status(case, answer)

    def _things(self, label: str) -> dict[str, Callable[[], str | None]]:
        """What this key could reach, by the name of the parameter."""
        if self.key == self.stack.key:
            return Owned(self.stack).things
        ours = self.key == self.stack.admin_key and label.startswith("admin_")
        return Administered(self.stack).things if ours else {}


class Owned:
    """The tenant's: found, or made when there is none. None where a limit is in the way."""

    def __init__(self, stack: Stack) -> None:
        self._call = stack.call
        self._close_sessions = stack.close_sessions
        self.things = {
            "session_id": self._session,
            "execution_id": self._execution,
            "snapshot_id": self._snapshot,
            "file_id": self._upload,
            "name": self._workspace,
        }

    def _session(self, **wish: str) -> str:
        """Always the same, until a request ends it: a lease of a second, for instance."""
        wish = wish or {"user_id": "fuzzed"}
        answer = self._call("POST", "/create_session", json=wish)
        if answer.status_code == STATUSES["too_many_sessions"]:
            self._close_sessions()
            answer = self._call("POST", "/create_session", json=wish)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["session_id"])

    def _execution(self) -> str | None:
        wish = {"command": "echo begun; read line", "stdin": "pipe", "background": True, "timeout": 1}
        answer = self._call("POST", f"/v1/sessions/{self._session()}/executions", json=wish)
        return answer.json().get("execution_id")

    def _snapshot(self) -> str | None:
        place = f"/v1/sessions/{self._session()}/snapshots"
        found = self._call("GET", place).json().get("snapshots")
        return (found[0] if found else self._call("POST", place, json={}).json()).get("snapshot_id")

    def _upload(self) -> str | None:
        found = self._call("GET", "/v1/uploads").json()["files"]
        made = found or self._call("POST", "/upload", files={"file": b"fuzzed"}).json().get("files")
        return made[0]["file_id"] if made else None

    def _workspace(self) -> str:
        """One that no session has, so that it can be deleted."""
        if self._call("GET", "/v1/workspaces/fuzzed").status_code == STATUSES["workspace_not_found"]:
            self._call("DELETE", f"/v1/sessions/{self._session(workspace='fuzzed')}")
        return "fuzzed"


class Administered:
    """A tenant and a key made for this: whatever becomes of them, those of the tests are left alone."""

    def __init__(self, stack: Stack) -> None:
        self._call = functools.partial(stack.call, key=stack.admin_key)
        self.things = {"name": self._tenant, "tenant": self._tenant, "key_id": self._key}

    def _tenant(self) -> str:
        """Names are given once, also when the one before was deleted."""
        wish = {"tenant": f"fuzzed-{uuid.uuid4().hex}"}
        answer = self._call("POST", "/v1/admin/tenants", json=wish)
        assert answer.status_code == 201, answer.text
        return wish["tenant"]

    def _key(self) -> str:
        answer = self._call("POST", "/v1/admin/keys", json={"tenant": self._tenant()})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["key_id"])


def _make_real(case: Any, things: Mapping[str, Callable[[], str | None]]) -> None:
    """What is there: what lies behind the first check is met too."""
    for given in (case.path_parameters, case.query, case.body):
        for name in set(things) & set(given if isinstance(given, dict) else ()):
            if given is not case.path_parameters and name == "name":
                continue  # not of a workspace or tenant, but one to be given
            given[name] = things[name]() or given[name]


def _name(operation: Any) -> str:
    return str(operation.definition.raw.get("operationId", ""))


def _check_status(case: Any, answer: Any) -> None:
    """`default` is for problems alone: whatever is none must be listed by its number."""
    status, kind = answer.status_code, answer.headers.get("content-type", [""])[0]
    told = f"{status} {kind}: {case.as_curl_command()}"
    if status < 400:
        assert str(status) in case.operation.definition.raw["responses"], told
        return
    assert kind == "application/problem+json", told
    assert STATUSES[answer.json()["code"]] == status, told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=2000, help="requests for each route")
    parser.add_argument("--seed", type=int, default=random.getrandbits(32))
    arguments = parser.parse_args()
    print("seed", arguments.seed, flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to stop"))  # what it has started is stopped too
    with running(**SETTINGS) as stack:
        for key in (None, stack.key, stack.admin_key):
            fuzz = Fuzz(stack, key, arguments.examples, arguments.seed)
            fuzz.run()
            statuses = Counter(status for _, status in fuzz.answered.elements())
            print(sum(statuses.values()), "answers:", dict(statuses), *fuzz.faults, sep="\n", flush=True)


if __name__ == "__main__":
    main()
