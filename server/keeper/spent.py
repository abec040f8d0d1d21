"""Ephemeral sessions whose caller went away, or whose web worker died: over with their command.

What a command with an Idempotency-Key came to is written down before, for who asks again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from server import results
from server.config import Config
from server.ephemeral_rows import end_unused, spent
from server.errors import ExecutionNotFound, GuestUnavailable
from server.guest_client import GuestSilent
from server.keeper.vitals import Vitals
from server.names import Idempotency, name_for
from server.presence import is_anybody_at
from server.run_rows import RunRows
from server.store import Session, Store

_SPENT_SECONDS = 15.0  # far beyond the time from being spent to its command's start

_log = logging.getLogger("sandbox.reaper")


class Spent:
    def __init__(self, config: Config, store: Store, vitals: Vitals, clock: Callable[[], float]) -> None:
        self._config = config
        self._store = store
        self._vitals = vitals
        self._answers = RunRows(store, clock)
        self._clock = clock

    def end(self) -> Iterator[Session]:
        """Those that were ended by this call, one by one."""
        for session in spent(self._store, self._clock() - _SPENT_SECONDS):
            if is_anybody_at(self._config.presence_path, session.id):
                continue
            try:
                ended = self._end(session)
            except (GuestSilent, GuestUnavailable):
                continue  # later, or when its lease is over
            if ended:
                _log.info("spent", extra={"fields": {"session": session.id}})
                yield session

    def _end(self, session: Session) -> bool:
        told = self._vitals.executions(session)
        if any(one.ended_at is None for one in told):
            return False
        self._write_down(session)
        return end_unused(self._store, session, ran=bool(told), now=self._clock())

    def _write_down(self, session: Session) -> None:
        if session.idempotency_key is None:
            return
        key = Idempotency(session.idempotency_key, session.fingerprint or "")
        name = name_for(session.id, None, "", key)
        try:
            answer = self._vitals.told(session, name.id).answer
        except ExecutionNotFound:
            return  # the key was for something else, or nothing has run
        if answer is not None:
            self._answers.keep(session.tenant, key, results.as_text(answer, session.id, name.id))
