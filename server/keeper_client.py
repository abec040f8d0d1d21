"""How the web side asks the keeper: one request and one answer, a JSON line each, over a unix socket.

A connection is used again while it is warm: to make one costs the keeper a thread, and opening a session is
a matter of a few milliseconds.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from server import errors, workspace_errors
from server.kept_connections import has_hung_up
from server.volume_rows import COPY_SECONDS

ANSWER_LIMIT = 1 << 20
_OPEN_SECONDS = 90.0
_OTHER_SECONDS = 30.0
_DOCTOR_SECONDS = 180.0  # two sandboxes are opened, and a program runs in each
_COPY_SECONDS = COPY_SECONDS + 60.0  # where copies are real ones they take their time
_CHECK_SECONDS = 5.0
_AT_ONCE = 1000
IDLE_SECONDS = 10.0  # after which the keeper lets go of a connection on which nothing is asked
_WARM_SECONDS = IDLE_SECONDS / 2  # we let go first, so that nothing is ever sent to nobody
_MOST_KEPT = 4


class KeeperClient:
    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = str(path)
        self._clock = clock
        self._kept: list[tuple[socket.socket, float]] = []

    def __enter__(self) -> KeeperClient:
        """For those who ask for a while: no connection waits for its next use after the block."""
        return self

    def __exit__(self, *_: object) -> None:
        while self._kept:
            self._kept.pop()[0].close()

    def open(
        self,
        session_id: str,
        image: str,
        memory: int,
        cpus: float,
        disk: int,
        env: dict[str, str],
        first: bool,
    ) -> None:
        """The session runs when this returns. Asked twice at once it opens one, as the first wants it."""
        wanted = {
            "session": session_id,
            "image": image,
            "memory": memory,
            "cpus": cpus,
            "disk": disk,
            "env": env,
        }
        self._ask({"verb": "open", "first": first, **wanted}, _OPEN_SECONDS)

    def queue(self, draft: dict[str, Any], seconds: float) -> tuple[str, bool] | None:
        """Wait in line for a place: the session that has it, and whether that is new. None: in vain."""
        request = {"verb": "queue", "draft": draft, "seconds": seconds}
        placed = self._ask(request, seconds + _OTHER_SECONDS)["placed"]
        return None if placed is None else (str(placed[0]), placed[1] is True)

    def close(self, sandbox: str, soon: bool = False) -> None:
        """Gone when this returns, or soon."""
        self._ask({"verb": "close", "sandbox": sandbox, "soon": soon}, _OTHER_SECONDS)

    def pause(self, session_id: str, cold: bool) -> None:
        self._ask({"verb": "pause", "session": session_id, "cold": cold}, _OPEN_SECONDS)

    def resume(self, session_id: str, reason: str) -> None:
        """The session is awake when this returns, or it has ended."""
        self._ask({"verb": "resume", "session": session_id, "reason": reason}, _OPEN_SECONDS)

    def examine(self, session_id: str) -> str | None:
        """Why the session's sandbox is dead (the session has then been ended), or None if it lives."""
        cause = self._ask({"verb": "examine", "session": session_id}, _OTHER_SECONDS).get("cause")
        return cause if isinstance(cause, str) else None

    def snapshot(self, session_id: str, snapshot: str) -> int | None:
        """Bytes that the workspace held, if that can be told."""
        wanted = {"session": session_id, "snapshot": snapshot}
        size = self._ask({"verb": "snapshot", **wanted}, _COPY_SECONDS).get("size")
        return size if isinstance(size, int) else None

    def restore(self, session_id: str, snapshot: str) -> None:
        self._ask({"verb": "restore", "session": session_id, "snapshot": snapshot}, _COPY_SECONDS)

    def drop(self, volume: str) -> None:
        """Remove a volume, if nobody owns it."""
        self._ask({"verb": "drop", "volume": volume}, _OTHER_SECONDS)

    def measure(self, volumes: list[str]) -> list[int | None]:
        """Bytes that each of them accounts for, if that can be told."""
        used: list[int | None] = []
        for at in range(0, len(volumes), _AT_ONCE):
            request = {"verb": "measure", "volumes": volumes[at : at + _AT_ONCE]}
            used += self._ask(request, _OTHER_SECONDS)["used"]
        return used

    def disk_used(self, tenant: str) -> int | None:
        """Bytes that all volumes of a tenant account for, if that can be told."""
        used = self._ask({"verb": "disk_used", "tenant": tenant}, _OTHER_SECONDS)["used"]
        return used if isinstance(used, int) else None

    def datasets(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._ask({"verb": "datasets"}, _OTHER_SECONDS)["datasets"]
        return found

    def usage(self, session_id: str, seconds: float) -> dict[str, Any]:
        """What the session uses: now, and each sample of the last so many seconds."""
        return self._ask({"verb": "usage", "session": session_id, "seconds": seconds}, _CHECK_SECONDS)

    def metrics(self) -> str:
        """The keeper's own, as Prometheus reads them."""
        return str(self._ask({"verb": "metrics"}, _CHECK_SECONDS)["text"])

    def check(self) -> dict[str, Any]:
        """What the keeper knows of the engine, the images and the wall."""
        return self._ask({"verb": "check"}, _CHECK_SECONDS)

    def leaks(self) -> dict[str, list[str]]:
        """What belongs to nobody, by kind."""
        found: dict[str, list[str]] = self._ask({"verb": "leaks"}, _OTHER_SECONDS)["leaks"]
        return found

    def doctor(self) -> dict[str, Any]:
        """A grade with its findings. The keeper opens two sandboxes for it."""
        told = self._ask({"verb": "doctor"}, _DOCTOR_SECONDS)
        return {name: told[name] for name in ("grade", "meaning", "findings")}

    def _ask(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        try:
            answer = self._exchange(request, seconds)
        except (OSError, ValueError) as exc:
            raise errors.KeeperUnavailable(
                "Sandboxes cannot be opened or closed now: the keeper does not answer. Try again soon."
            ) from exc
        if answer.get("ok") is True:
            return answer
        if answer.get("code") in _REFUSALS:
            raise _REFUSALS[answer["code"]](**answer["facts"])
        raise errors.EngineUnavailable(str(answer.get("detail", "The Docker Engine refused.")))

    def _exchange(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        connection = self._connected(seconds)
        try:
            connection.settimeout(seconds)
            connection.sendall(json.dumps(request).encode() + b"\n")
            with connection.makefile("rb") as stream:
                answer = json.loads(stream.readline(ANSWER_LIMIT))
            if not isinstance(answer, dict):
                raise ValueError("not an answer")
        except BaseException:  # also when the caller has gone: the keeper notices that nobody waits
            connection.close()
            raise
        self._keep(connection)
        return answer

    def _connected(self, seconds: float) -> socket.socket:
        """The one that was used last, if it is still good; else a new one."""
        while self._kept:
            connection, since = self._kept.pop()
            if self._clock() - since < _WARM_SECONDS and not has_hung_up(connection):
                return connection
            connection.close()
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.settimeout(seconds)
            connection.connect(self._path)
        except BaseException:
            connection.close()
            raise
        return connection

    def _keep(self, connection: socket.socket) -> None:
        if len(self._kept) < _MOST_KEPT:
            self._kept.append((connection, self._clock()))
        else:
            connection.close()


def _dataset_gone() -> errors.SandboxError:
    return errors.Invalid("datasets", "There is no dataset of that name. GET /v1/datasets lists them.")


def _host_full(limit: str, used: int, allowed: int) -> errors.SandboxError:
    return errors.HostFull(used, allowed)


_REFUSALS: dict[str, Callable[..., errors.SandboxError]] = {
    "storage_unsupported": workspace_errors.StorageUnsupported,
    "snapshot_not_found": workspace_errors.SnapshotNotFound,
    "tenant_quota": workspace_errors.TenantQuota,
    "dataset_gone": _dataset_gone,
    "host_full": _host_full,
    "quota_exceeded": errors.QuotaExceeded,
    "storage_full": workspace_errors.StorageFull,
}
