"""Sessions that nobody uses sleep: first paused, their sandbox frozen; later cold, without one.

The store says `paused` before a sandbox is frozen and `hot` after it was thawed. So a call that finds a
session hot may speak to its guest, and a crash leaves at most a sandbox that is awake although it should
sleep. What the main shell is like is written down whenever a session is paused: going cold asks nobody.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from server.config import Config
from server.errors import HostFull, QuotaExceeded
from server.keeper.furnishing import Furnishing
from server.keeper.runtime import Refused, Runtime, RuntimeFailed
from server.keeper.sandboxes import Sandboxes
from server.keeper.turns import Turns
from server.keeper.vitals import Vitals
from server.presence import is_anybody_at
from server.records import COLD, HOT, PAUSED, WAKING
from server.sleep_rows import SleepRows
from server.store import Admit, Session, Store

_AT_ONCE = 8  # a shell that does not answer costs seconds, and must not keep others awake
_WAKING_SECONDS = 60.0
_LAST_WORDS_SECONDS = 1.0  # for calls that are about to end
_LOOK_SECONDS = 0.02
_PUT_OFF_SECONDS = 30.0  # until one that could not be paused is tried again

_log = logging.getLogger("sandbox.sleep")


class Sleeping:
    def __init__(
        self,
        config: Config,
        store: Store,
        rows: SleepRows,
        runtime: Runtime,
        furnishing: Furnishing,
        sandboxes: Sandboxes,
        vitals: Vitals,
        turns: Turns,
        admit: Admit,
        clock: Callable[[], float],
    ) -> None:
        self._config = config
        self._store = store
        self._rows = rows
        self._runtime = runtime
        self._furnishing = furnishing
        self._sandboxes = sandboxes
        self._vitals = vitals
        self._turns = turns
        self._admit = admit
        self._clock = clock
        self._put_off: dict[str, float] = {}

    def pause(self, session_id: str, cold: bool) -> None:
        """Because it was asked for: whatever runs in it waits, or ends where it goes cold."""
        with self._turns.taken(session_id):
            session = self._running(session_id)
            if cold and not self._furnishing.outlives(session):
                raise Refused("storage_unsupported")
            if session.phase == HOT:
                self._let_finish(session)
                rested_at = self._vitals.rested_at(session)
                if self._rows.put_to_sleep(session, rested_at, self._clock()):
                    self._let_finish(session)
                    self._freeze(session)
            now = self._running(session_id)
            if cold and now.phase == PAUSED:
                self._furnishing.settle_shell(now)
                self._cool(now, "asked")

    def resume(self, session_id: str, reason: str) -> None:
        """Awake when this returns, or it has ended."""
        with self._turns.taken(session_id, _WAKING_SECONDS):
            session = self._store.session(session_id)
            if session is not None and session.state == "running":
                self._wake(session, reason)

    def awake(self, session_id: str) -> Session:
        """The session, hot. For callers whose turn it is."""
        self._wake(self._running(session_id), "used")
        return self._running(session_id)

    def _wake(self, session: Session, reason: str) -> None:
        if session.phase == PAUSED:
            self._thaw(session, reason)
        elif session.phase in (COLD, WAKING):
            self._give_sandbox(session, reason)

    def _thaw(self, session: Session, reason: str) -> None:
        assert session.sandbox is not None
        try:
            self._runtime.resume(session.sandbox)
        except RuntimeFailed:
            seen = self._runtime.inspect(session.sandbox)
            if seen is not None and seen.cause is None:
                raise
            self._sandboxes.bury(session.id, session.sandbox, (seen and seen.cause) or "lost")
        else:
            self._rows.wake(session, reason, self._clock())

    def _give_sandbox(self, session: Session, reason: str) -> None:
        self._sleep_on(session)
        self._sandboxes.evict(session.volume)
        furniture = self._furnishing.again(session)
        if furniture is None:
            self._store.end(session.id, "lost", self._clock())
            return
        self._take_place(session)
        try:
            self._sandboxes.move(
                session,
                furniture,
                lambda new: self._rows.warm_up(session, new.id, new.address, reason, self._clock()),
            )
        except BaseException:
            self._rows.sleep_on(session.id)
            raise

    def _take_place(self, session: Session) -> None:
        try:
            self._rows.begin_waking(session, self._admit)
        except (HostFull, QuotaExceeded) as full:
            raise Refused(full.code, **full.extras) from full

    def doze(self) -> None:
        """By the clock: pause what is idle, and take its sandbox from what has been idle for long."""
        now = self._clock()
        self._put_off = {one: until for one, until in self._put_off.items() if until > now}
        pause_after, cold_after = self._config.pause_after, self._config.cold_after
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            if idle_after := min(filter(None, (pause_after, cold_after)), default=0.0):
                idle = self._rows.idle(now - idle_after)
                list(pool.map(lambda one: self._tried(self._fall_asleep, one, now - idle_after), idle))
            if cold_after:
                asleep_for = cold_after - (pause_after or cold_after)
                cooling = self._rows.long_idle(now - cold_after, now - asleep_for)
                list(pool.map(lambda one: self._tried(self._grow_cold, one, now - cold_after), cooling))

    def settle(self) -> None:
        """A keeper may have died between writing `paused` and freezing, or between thawing and `hot`."""
        seen = {one.id: one for one in self._runtime.seen()}
        for session in self._rows.paused():
            here = seen.get(session.sandbox or "")
            if here is not None and here.cause is None and not here.paused:
                self._tried(self._freeze_again, session)

        for session in self._rows.waking():
            self._tried(self._sleep_on, session)

    def _sleep_on(self, session: Session, _: float = 0.0) -> None:
        """One that is `waking` although it is our turn was given up by somebody who could not write that."""
        if session.phase == WAKING:
            self._rows.sleep_on(session.id)

    def _tried(self, put: Callable[[Session, float], None], session: Session, before: float = 0.0) -> None:
        """One that fails is tried again later, and keeps nobody else from sleeping."""
        if session.id in self._put_off:
            return
        try:
            with self._turns.taken(session.id, 0):
                put(session, before)
        except RuntimeFailed as exc:
            self._put_off[session.id] = self._clock() + _PUT_OFF_SECONDS
            fields = {"session": session.id, "words": exc.words}
            _log.warning("could not put a session to sleep: %s", exc, extra={"fields": fields})

    def _fall_asleep(self, session: Session, before: float) -> None:
        rested_at = None if self._is_spoken_to(session) else self._vitals.rested_at(session)
        if rested_at is None or rested_at > before:
            self._put_off[session.id] = self._clock() + min(_PUT_OFF_SECONDS, self._clock() - before)
            return
        if not self._rows.fall_asleep(session, "idle", rested_at, self._clock()):
            return
        if self._is_spoken_to(session):
            self._rows.wake(session, "used", self._clock())
            return
        self._freeze(session)

    def _is_spoken_to(self, session: Session) -> bool:
        return is_anybody_at(self._config.presence_path, session.id)

    def _grow_cold(self, session: Session, before: float) -> None:
        now = self._running(session.id)
        if now.phase != PAUSED or now.last_used_at > before or not self._furnishing.outlives(now):
            return
        if self._furnishing.settle_shell(now):
            self._cool(now, "idle")

    def _freeze_again(self, session: Session, _: float) -> None:
        now = self._running(session.id)
        if now.phase == PAUSED and now.sandbox == session.sandbox:
            self._freeze(now)

    def _freeze(self, session: Session) -> None:
        """It is `paused` in the store, and nobody begins to speak to it. If it cannot be, it is hot again."""
        assert session.sandbox is not None
        try:
            if self._furnishing.outlives(session):
                self._furnishing.keep_shell(session, self._last_words(session))
            with self._sandboxes.holding(session.sandbox):
                self._runtime.pause(session.sandbox)
        except BaseException:
            self._rows.wake(session, "used", self._clock())
            raise
        _log.info("paused", extra={"fields": {"session": session.id}})

    def _last_words(self, session: Session) -> bytes:
        told = self._vitals.describe(session, with_results=True)
        if not told:
            raise RuntimeFailed("The sandbox does not answer: it cannot be put to sleep now.")
        return told

    def _cool(self, session: Session, reason: str) -> None:
        assert session.sandbox is not None
        if self._rows.cool(session, reason, self._clock()):
            _log.info("cold", extra={"fields": {"session": session.id}})
            self._sandboxes.close(session.sandbox)

    def _let_finish(self, session: Session) -> None:
        """Who is being answered shall not be caught in the middle, nor who was just let in be kept out.

        So they are waited for before the store says `paused`, and those who saw it hot until then after it.
        """
        deadline = time.monotonic() + _LAST_WORDS_SECONDS
        while self._is_spoken_to(session) and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)

    def _running(self, session_id: str) -> Session:
        session = self._store.session(session_id)
        if session is None or session.state != "running":
            raise RuntimeFailed("The session is not running.")
        return session
