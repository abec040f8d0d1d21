"""Opening sandboxes for sessions, from the pool or anew: what is made and what the store says, kept in step.

Opening is two-phase. A container without a running session in the store, and not in the middle of being
opened here, belongs to nobody: whoever dies in between, the reconciler removes it.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from server.config import Config
from server.errors import GuestUnavailable
from server.guest_client import GuestClient, GuestSilent, Sandbox
from server.keeper.furnishing import Furnishing
from server.keeper.host import Host
from server.keeper.making import Making
from server.keeper.meters import Meters
from server.keeper.openings import Openings
from server.keeper.pool import Pool, Warm
from server.keeper.removals import Removals
from server.keeper.runtime import Runtime, RuntimeFailed
from server.keeper.storage import Furniture, Storage
from server.keeper.wanted import Wanted
from server.store import Session, Store

_log = logging.getLogger("sandbox.keeper")


class Sandboxes:
    def __init__(
        self,
        config: Config,
        store: Store,
        runtime: Runtime,
        storage: Storage,
        furnishing: Furnishing,
        guests: GuestClient,
        making: Making,
        pool: Pool,
        host: Host,
        meters: Meters,
        clock: Callable[[], float],
    ) -> None:
        self._pool, self._host, self._meters = pool, host, meters
        self._config = config
        self._store = store
        self._runtime = runtime
        self._storage = storage
        self._furnishing = furnishing
        self._guests = guests
        self._clock = clock
        self._openings = Openings()
        self._lets_mounts_in = True
        self._making = making
        self.close, self.in_hand, self.holding = making.close, making.in_hand, making.holding
        self.failing = making.failing
        self.removals = Removals(making.close)

    def await_first(self, session: str) -> None:
        """Let the caller who reserved the session begin: the sandbox is opened as that one wants it."""
        self._openings.await_first(session, lambda: self._is_opening(session))

    def open(self, wanted: Wanted) -> None:
        """Open a session's sandbox; callers who ask for the same session meanwhile share the one opening."""
        self._openings.once(wanted.session, lambda: self._open(wanted))

    def _is_opening(self, session_id: str) -> bool:
        session = self._store.session(session_id)
        return session is not None and session.state == "opening"

    def _open(self, wanted: Wanted) -> None:
        session = self._store.session(wanted.session)
        if session is None or session.state != "opening":
            return  # an earlier asking has done it, or nobody waits any more
        if session.workspace is not None:
            self.evict(session.volume)
        opened, furniture = self._provide(wanted, session, self._fixed(session))
        try:
            if not self._attach(session, opened, furniture.volume):
                raise RuntimeFailed("The session was given up while its sandbox was being opened.")
        except BaseException:
            self._furnishing.let_go(furniture.volume)
            self.close(opened.id)
            raise
        finally:
            self._furnishing.let_go(furniture.volume)
            self._making.let_go(opened.id)

    def _attach(self, session: Session, opened: Sandbox, volume: str | None) -> bool:
        """Without a name nothing of a session outlives the machine: no need to wait for a disk."""
        lasting = "NORMAL" if session.workspace is None else "FULL"
        return self._store.attach(session.id, opened.id, opened.address, self._clock(), volume, lasting)

    def _fixed(self, session: Session) -> Furniture | None:
        """What the session must have in its sandbox; None if whatever waits empty in one will do."""
        if session.workspace is None and session.source is None and not session.datasets:
            self._furnishing.check(session)
            return None
        return self._furnishing.for_session(session)

    def move(self, session: Session, furniture: Furniture, settle: Callable[[Sandbox], bool]) -> None:
        """The session goes on in another sandbox once `settle` has written that down; till then as before."""
        wanted = Wanted(session.id, session.image, session.memory, session.cpus, session.disk, {})
        opened, _ = self._provide(wanted, session, furniture)
        try:
            if not settle(opened):
                raise RuntimeFailed("The session ended, or was moved by somebody else, meanwhile.")
        except BaseException:
            self.close(opened.id)
            raise
        finally:
            self._making.let_go(opened.id)
        if session.sandbox is not None:
            self.removals.soon(session.sandbox)

    def evict(self, volume: str | None) -> None:
        """Who had the workspace before has ended, but its sandbox may not be gone yet."""
        for sandbox in self._storage.holders(volume) if volume is not None else ():
            self.close(sandbox)

    def _provide(
        self, wanted: Wanted, session: Session, fixed: Furniture | None
    ) -> tuple[Sandbox, Furniture]:
        """A sandbox for a session, warm if there is one. It stays in hand, as what `make` gives."""
        self._pool.note_demand(wanted.image)
        claimed = self._meters.timed("warm", self._claimed, wanted, session, fixed)
        if claimed is not None:
            return claimed
        self._host.make_way(self._pool, self.discard_warm)
        furniture = fixed or self._furnishing.for_session(session)
        return self._meters.timed("cold", self._making.make, wanted, furniture), furniture

    def _claimed(
        self, wanted: Wanted, session: Session, fixed: Furniture | None
    ) -> tuple[Sandbox, Furniture] | None:
        """A warm one, told whose it is. They are all of the default size."""
        if (wanted.memory, wanted.cpus) != (self._config.memory, self._config.cpus):
            return None
        if self._furnishing.is_soft and wanted.disk != self._config.disk:
            return None  # where the guest keeps the limit, it was told when it started
        while self.can_use_warm() and (warm := self._pool.take(wanted.image)) is not None:
            try:
                furniture = fixed or self._furnishing.give(session, warm.furniture)
                if self._moved_in(warm, wanted, furniture):
                    return warm.sandbox, furniture
            except (GuestSilent, GuestUnavailable):
                _log.warning("a warm sandbox was dead", extra={"fields": {"sandbox": warm.sandbox.id}})
            except BaseException:
                self.discard_warm(warm)
                raise
            finally:
                self._guests.forget(warm.sandbox.id)
            self.discard_warm(warm)
        return None

    def can_use_warm(self) -> bool:
        """Not where what a session has must be mounted before its sandbox starts."""
        return not self._furnishing.mounts or self._furnishes_late()

    def _furnishes_late(self) -> bool:
        return self._lets_mounts_in and not self._runtime.oci().is_gvisor

    def _moved_in(self, warm: Warm, wanted: Wanted, furniture: Furniture) -> bool:
        if furniture == warm.furniture:
            self._storage.settle(warm.sandbox.id)
            self._guests.adopt(warm.sandbox, wanted.env, b"", moved=False)
            return True
        if not self._furnished_late(warm.sandbox, wanted.env, furniture, for_good=True):
            return False
        with suppress(RuntimeFailed):  # the sweep finds it
            self._furnishing.end_trial(warm.furniture.volume)
        return True

    def _furnished_late(
        self, sandbox: Sandbox, env: dict[str, str], furniture: Furniture, for_good: bool
    ) -> bool:
        """Whether the guest sees what was mounted for it: not every runtime lets it through."""
        mounted = self._storage.furnish(sandbox.id, furniture, for_good)
        if mounted in (None, self._guests.adopt(sandbox, env, furniture.shell)):
            return True
        _log.warning("workspaces cannot be mounted into running sandboxes here")
        self._lets_mounts_in = False
        return False

    def warm_up(self, image: str, made_of: str) -> Warm:
        """A sandbox for the pool, with its interpreters started. It stays in hand until it is claimed."""
        config, furniture, late = self._config, self._furnishing.for_pool(), self._furnishes_late()
        wanted = Wanted("", image, config.memory, config.cpus, config.disk, {})
        try:  # only what is mounted after the start can be taken away again
            made = self._making.make(wanted, Furniture() if late else furniture)
        except BaseException:
            self._furnishing.end_trial(furniture.volume)
            raise
        warm = Warm(made, image, made_of, furniture)
        try:
            if late and not self._furnished_late(made, {}, furniture, for_good=False):
                raise RuntimeFailed("A sandbox for the pool cannot be furnished: the next one is beforehand.")
            self._guests.prepare(made, self._config.pool_languages)
        except (GuestSilent, GuestUnavailable) as exc:
            self.discard_warm(warm)
            raise RuntimeFailed("A sandbox for the pool did not get ready.", str(exc)) from exc
        except BaseException:
            self.discard_warm(warm)
            raise
        return warm  # and the connection to its guest is kept, for whoever claims it

    def discard_warm(self, warm: Warm) -> None:
        try:
            self._making.discard(warm.sandbox.id)
        finally:
            self._furnishing.end_trial(warm.furniture.volume)

    def answers(self, sandbox: Sandbox) -> bool:
        try:
            return self._guests.is_bound(sandbox)
        except (GuestSilent, GuestUnavailable):
            return False

    def is_busy(self) -> bool:
        """Whether somebody waits for a sandbox right now."""
        return self._openings.any()

    @contextmanager
    def trial(self, wanted: Wanted) -> Iterator[Sandbox]:
        """A sandbox of nobody's, gone at the end of the block."""
        volume = secrets.token_hex(16)
        try:
            made = self._making.make(wanted, self._furnishing.trial(volume))
            try:
                yield made
            finally:
                self._guests.forget(made.id)
                self._making.discard(made.id)
        finally:
            self._furnishing.end_trial(volume)

    def bury(self, session_id: str, sandbox: str, cause: str) -> str:
        """The session has died with its sandbox, if it is still in it."""
        self._store.end(session_id, cause, self._clock(), sandbox)
        _log.warning(
            "sandbox died", extra={"fields": {"session": session_id, "sandbox": sandbox, "cause": cause}}
        )
        self.close(sandbox)
        return cause

    def under_way(self) -> set[str]:
        """Sessions that are being opened."""
        return self._openings.all()
