"""Sessions: a tenant's lease on one sandbox, from open to close.

A session that is not yours and one that never was get the same answer, so that ids cannot be probed.
Only opening, closing, waking and a silent guest involve the keeper.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from server import errors
from server.config import Config
from server.guest_client import GuestClient, GuestSilent, Sandbox
from server.instance import Instance
from server.keeper_client import KeeperClient
from server.names import Idempotency
from server.presence import Presence
from server.records import HOT, WAITING, values_of
from server.store import Admit, Session, Store, cursor_of
from server.times import timestamp

_MOST_USERS = 8192
_WORTH_RENEWING = 1.0  # a lease that started a moment ago need not be started again
_WAKINGS = 10  # somebody else may put it to sleep again at the same moment


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
    disk: int = 0
    workspace: str | None = None
    source: str | None = None
    datasets: tuple[str, ...] = ()
    checkpoint: bool = False
    visit: bool = False
    ephemeral: bool = False


class Opened(NamedTuple):
    """`new` is what its caller is told, and who repeats its request; `mine` whether this call has made it."""

    session: Session
    new: bool
    mine: bool


class Sessions:
    def __init__(
        self,
        config: Config,
        instance: Instance,
        store: Store,
        keeper: KeeperClient,
        guests: GuestClient,
        presence: Presence,
        clock: Callable[[], float],
        admit: Admit,
    ) -> None:
        self._admit = admit
        self._users: dict[str, tuple[str, str | None]] = {}
        self._config = config
        self._instance = instance
        self._store = store
        self._keeper = keeper
        self._guests = guests
        self._presence = presence
        self._clock = clock

    def open(self, tenant: str, wish: Wish, idempotency: Idempotency | None, wait: float = 0.0) -> Opened:
        """The place is reserved before the engine is asked.

        If there is none, one is waited for, for so long.
        """
        session, new = self._reserve(self._draft(tenant, wish, idempotency), wait)
        if session.state == "running" and session.is_due(self._clock()):
            self.end(session, "expired")
            return self.open(tenant, wish, idempotency, wait)
        replayed = idempotency is not None and session.idempotency_key == idempotency.key
        if session.state == "opening":
            session = self._finish_opening(session, wish.env, new)
        if session.state == "ended" and (replayed or (new and session.cause != "closed")):
            raise _ended(session)
        if session.state == "ended":  # somebody has closed it meanwhile, whoever had opened it
            return self.open(tenant, wish, idempotency, wait)
        told_new = new or (replayed and session.fingerprint is not None)  # else it stood before
        return Opened(session, told_new, new)

    def _reserve(self, draft: Session, wait: float) -> tuple[Session, bool]:
        try:
            return self._store.reserve(draft, self._admit)
        except (errors.QuotaExceeded, errors.HostFull) as full:
            if not wait or not full.retryable:
                raise
            placed = self._keeper.queue(values_of(draft), wait)
        session = None if placed is None else self._store.session(placed[0])
        if placed is None or session is None:  # in vain: the reason may be another by now
            return self._store.reserve(draft, self._admit)
        return session, placed[1]

    def get(self, tenant: str, session_id: str) -> Session:
        session = self._store.session(session_id)
        if session is None or session.tenant != tenant or session.state == "opening":
            raise errors.SessionNotFound
        if session.state == "running" and session.is_due(self._clock()):
            self.end(session, "expired")
            session = self._store.session(session_id) or session
        if session.state == "ended":
            raise _ended(session)
        return session

    def user_of(self, tenant: str, session_id: str | None) -> str | None:
        """Whose session it is, or was, among the tenant's users. That never changes, so it is asked once."""
        if session_id is None:
            return None
        if session_id not in self._users:
            session = self._store.session(session_id)
            if session is None:
                return None
            if len(self._users) >= _MOST_USERS:
                self._users.clear()
            self._users[session_id] = (session.tenant, session.user_id)
        owner, user = self._users[session_id]
        return user if owner == tenant else None

    def list(
        self, tenant: str, user_id: str | None, metadata: dict[str, str], after: str, limit: int
    ) -> tuple[list[Session], str | None]:
        """A page of the tenant's sessions, and the cursor of the next page if there may be one."""
        found = self._store.list_running(tenant, user_id, metadata, after, limit)
        following = cursor_of(found[-1]) if len(found) == limit else None
        return [session for session in found if not session.is_due(self._clock())], following

    @contextlib.contextmanager
    def reached(self, session: Session) -> Iterator[Sandbox]:
        """The session's sandbox, to be spoken to in the block; it is woken if it sleeps.

        If it is silent, that is explained.
        """
        self._presence.enter(session.id)
        try:
            yield self._sandbox(self._awake(session))
        except GuestSilent as exc:
            raise self._explain(session) from exc
        finally:
            self._presence.leave(session.id)

    def greet(self, session: Session) -> None:
        """Its guest, before anybody has to wait for that; to be followed by `meet`, if nobody asks soon."""
        with contextlib.suppress(GuestSilent):
            self._guests.greet(self._sandbox(session))

    def meet(self, session: Session) -> None:
        with contextlib.suppress(GuestSilent, errors.GuestUnavailable):
            self._guests.meet(self._sandbox(session))

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

    def pause(self, tenant: str, session_id: str, cold: bool) -> Session:
        """At once, whatever runs in it: it waits, or ends where the session goes cold."""
        session = self.get(tenant, session_id)
        try:
            self._keeper.pause(session.id, cold)
        except errors.EngineUnavailable:
            self.get(tenant, session_id)  # if it has ended meanwhile, that is the reason
            raise
        return self.get(tenant, session_id)

    def resume(self, tenant: str, session_id: str) -> Session:
        session = self.get(tenant, session_id)
        self.use(session)
        self._awake(session, "asked")
        return self.get(tenant, session_id)

    def close(self, tenant: str, session_id: str) -> None:
        self.end(self.get(tenant, session_id), "closed")

    def disk_used(self, session: Session) -> int | None:
        """Bytes that its workspace accounts for, if that can be told now."""
        if session.volume is None:
            return None
        try:
            return self._keeper.measure([session.volume])[0]
        except errors.Unavailable:
            return None

    def forget_sandbox(self, session: Session) -> None:
        """The session has moved to another sandbox: nobody shall speak to the old one."""
        if session.sandbox is not None:
            self._guests.forget(session.sandbox)

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
            volume=secrets.token_hex(16),
            workspace=wish.workspace,
            source=wish.source,
            disk=wish.disk,
            datasets=wish.datasets,
            checkpoint=wish.checkpoint,
            visit=wish.visit,
            ephemeral=WAITING if wish.ephemeral else 0,
        )

    def _finish_opening(self, session: Session, env: dict[str, str], mine: bool) -> Session:
        """Ask the keeper; whoever reserved the place also gives it up when that fails."""
        try:
            size = (session.memory, session.cpus, session.disk)
            self._keeper.open(session.id, session.image, *size, env, mine)
        except BaseException:
            if mine:
                self._give_up(session)
            raise
        opened = self._store.session(session.id)
        if opened is None or opened.state == "opening":
            raise errors.EngineUnavailable("The sandbox could not be opened. Try again.")
        return opened

    def _give_up(self, session: Session) -> None:
        self._store.release(session.id)
        if session.volume is not None:
            with contextlib.suppress(errors.Unavailable):  # the keeper's sweep finds it
                self._keeper.drop(session.volume)

    def end(self, session: Session, cause: str, soon: bool = False) -> None:
        """Over at once for every caller. What the keeper cannot remove now, its reconciler will."""
        if cause == "expired":
            ended = self._store.end_if_due(session.id, self._clock())
        else:
            ended = self._store.end(session.id, cause, self._clock())
        if ended:
            self.remove(session, soon)
        else:
            self.forget_sandbox(session)

    def remove(self, session: Session, soon: bool) -> None:
        """What is left of one that has ended."""
        self.forget_sandbox(session)
        now = self._store.session(session.id) or session  # it may have gone cold, or woken, meanwhile
        with contextlib.suppress(errors.Unavailable):  # ended all the same
            if now.sandbox is not None:
                self._keeper.close(now.sandbox, soon)
            elif now.volume is not None:
                self._keeper.drop(now.volume)

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

    def _awake(self, session: Session, reason: str = "used") -> Session:
        """The session as it is when it may be spoken to."""
        for _ in range(_WAKINGS):
            now = self._store.session(session.id)
            if now is None:
                raise errors.SessionNotFound
            if now.state == "ended":
                raise _ended(now)
            if now.phase == HOT:
                return now
            self._keeper.resume(session.id, reason)
        raise errors.EngineUnavailable("The session is put to sleep again and again. Try again shortly.")

    def _sandbox(self, session: Session) -> Sandbox:
        assert session.sandbox is not None and session.address is not None, "running sessions have a sandbox"
        return Sandbox(session.sandbox, session.address, self._instance.guest_secret(session.sandbox))


def _ended(session: Session) -> errors.SessionEnded:
    return errors.SessionEnded(session.cause or "lost", timestamp(session.ended_at or session.last_used_at))
