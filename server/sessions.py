"""Sessions: a tenant's lease on one sandbox, from open to close.

A session that is not yours and one that never was get the same answer, so that ids cannot be probed.
Only opening, closing and a silent guest involve the keeper.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from server import errors
from server.config import Config
from server.guest_client import GuestClient, GuestSilent, Sandbox
from server.instance import Instance
from server.keeper_client import KeeperClient
from server.store import Session, Store, cursor_of
from server.times import timestamp

_WORTH_RENEWING = 1.0  # a lease that started a moment ago need not be started again


@dataclass(frozen=True)
class Wish:
    """What a caller asks for when opening. Checked, with defaults filled in."""

    user_id: str | None
    image: str
    memory: int
    cpus: float
    lease: float
    env: dict[str, str]
    metadata: dict[str, str]


@dataclass(frozen=True)
class Idempotency:
    """The caller's key for this request, and a fingerprint of the request itself."""

    key: str
    fingerprint: str


class Sessions:
    def __init__(
        self,
        config: Config,
        instance: Instance,
        store: Store,
        keeper: KeeperClient,
        guests: GuestClient,
        clock: Callable[[], float],
    ) -> None:
        self._config = config
        self._instance = instance
        self._store = store
        self._keeper = keeper
        self._guests = guests
        self._clock = clock

    def open(self, tenant: str, wish: Wish, idempotency: Idempotency | None) -> tuple[Session, bool]:
        """The session, and whether it is new. The place is reserved before the engine is asked."""
        session, new = self._store.reserve(self._draft(tenant, wish, idempotency), self._config.sessions_max)
        if session.state == "running" and session.is_due(self._clock()):
            self._end(session, "expired")
            return self.open(tenant, wish, idempotency)
        replayed = idempotency is not None and session.idempotency_key == idempotency.key
        if session.state == "opening":
            session = self._finish_opening(session, wish.env, new)
        if session.state == "ended" and (new or replayed):
            raise _ended(session)
        if session.state == "ended":  # the one that stood in its place was closed meanwhile
            return self.open(tenant, wish, idempotency)
        return session, new or replayed

    def get(self, tenant: str, session_id: str) -> Session:
        session = self._store.session(session_id)
        if session is None or session.tenant != tenant or session.state == "opening":
            raise errors.SessionNotFound
        if session.state == "running" and session.is_due(self._clock()):
            self._end(session, "expired")
            session = self._store.session(session_id) or session
        if session.state == "ended":
            raise _ended(session)
        return session

    def list(
        self, tenant: str, user_id: str | None, metadata: dict[str, str], after: str, limit: int
    ) -> tuple[list[Session], str | None]:
        """A page of the tenant's sessions, and the cursor of the next page if there may be one."""
        found = self._store.list_running(tenant, user_id, metadata, after, limit)
        following = cursor_of(found[-1]) if len(found) == limit else None
        return [session for session in found if not session.is_due(self._clock())], following

    @contextlib.contextmanager
    def reached(self, session: Session) -> Iterator[Sandbox]:
        """The session's sandbox, to be spoken to in the block. If it is silent, that is explained."""
        try:
            yield self._sandbox(session)
        except GuestSilent as exc:
            raise self._explain(session) from exc

    def use(self, session: Session, longest: float = 0.0) -> float:
        """Renew the lease. What may run for `longest` seconds keeps the session: until the time returned."""
        now = self._clock()
        busy_until = now + longest if longest > session.lease else 0.0
        if busy_until or abs(now - session.last_used_at) >= min(_WORTH_RENEWING, session.lease / 4):
            self._store.use(session.id, now, busy_until)
        return busy_until

    def rest(self, session: Session, busy_until: float, since: float | None = None) -> None:
        """What was used has ended, now or back then: the lease starts anew from there."""
        now = self._clock()
        self._store.rest(session.id, now if since is None else min(now, since), busy_until)

    def extend(self, tenant: str, session_id: str, lease: float | None) -> Session:
        session = self.get(tenant, session_id)
        self._store.extend(session_id, lease or session.lease, self._clock())
        return self.get(tenant, session_id)

    def close(self, tenant: str, session_id: str) -> None:
        self._end(self.get(tenant, session_id), "closed")

    def _draft(self, tenant: str, wish: Wish, idempotency: Idempotency | None) -> Session:
        now = self._clock()
        return Session(
            id=secrets.token_hex(16),
            tenant=tenant,
            user_id=wish.user_id,
            state="opening",
            image=wish.image,
            memory=wish.memory,
            cpus=wish.cpus,
            lease=wish.lease,
            metadata=wish.metadata,
            created_at=now,
            last_used_at=now,
            busy_until=0,
            must_end_at=now + self._config.age_max,
            idempotency_key=idempotency.key if idempotency else None,
            fingerprint=idempotency.fingerprint if idempotency else None,
        )

    def _finish_opening(self, session: Session, env: dict[str, str], mine: bool) -> Session:
        """Ask the keeper; whoever reserved the place also gives it up when that fails."""
        try:
            self._keeper.open(session.id, session.image, session.memory, session.cpus, env, mine)
        except BaseException:
            if mine:
                self._store.release(session.id)
            raise
        opened = self._store.session(session.id)
        if opened is None or opened.state == "opening":
            raise errors.EngineUnavailable("The sandbox could not be opened. Try again.")
        return opened

    def _end(self, session: Session, cause: str) -> None:
        """Over at once for every caller. What the keeper cannot remove now, its reconciler will."""
        if session.sandbox is not None:
            self._guests.forget(session.sandbox)
        if cause == "expired":
            ended = self._store.end_if_due(session.id, self._clock())
        else:
            ended = self._store.end(session.id, cause, self._clock())
        if not ended or session.sandbox is None:
            return
        with contextlib.suppress(errors.Unavailable):  # ended all the same
            self._keeper.close(session.sandbox)

    def _explain(self, session: Session) -> errors.SandboxError:
        """Why a guest is silent. Asking the keeper also ends a session whose sandbox is dead."""
        cause = None
        with contextlib.suppress(errors.Unavailable):
            cause = self._keeper.examine(session.id)
        if cause is None:
            return errors.GuestUnavailable(
                "The sandbox does not answer. The command may have run: look first."
            )
        ended = self._store.session(session.id)
        return _ended(ended) if ended is not None else errors.SessionNotFound()

    def _sandbox(self, session: Session) -> Sandbox:
        assert session.sandbox is not None and session.address is not None, "running sessions have a sandbox"
        return Sandbox(session.sandbox, session.address, self._instance.guest_secret(session.sandbox))


def _ended(session: Session) -> errors.SessionEnded:
    return errors.SessionEnded(session.cause or "lost", timestamp(session.ended_at or session.last_used_at))
