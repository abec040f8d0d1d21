"""Opening and closing sandboxes: the engine, the storage and the store, kept in step.

Opening is two-phase. A container without a running session in the store, and not in the middle of being
opened here, belongs to nobody: whoever dies in between, the reconciler removes it.
"""

from __future__ import annotations

import logging
import math
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from server.config import Config
from server.errors import GuestUnavailable
from server.guest import protocol
from server.guest_client import TERMINAL, Binding, GuestClient, GuestSilent, Sandbox
from server.instance import Instance
from server.keeper.appearance import wait_for_name
from server.keeper.pool import Pool
from server.keeper.runtime import Runtime, RuntimeFailed, Seen, Spec
from server.keeper.storage import Storage
from server.keeper.uids import Uids
from server.store import Session, Store

_READY_SECONDS = 30.0
_FIRST_SECONDS = 2.0
_DEATH_SECONDS = 3.0
_AT_ONCE = 8  # engine calls in flight for opening; more only make each other slower

_log = logging.getLogger("sandbox.keeper")


@dataclass(frozen=True)
class Wanted:
    session: str
    image: str
    memory: int
    cpus: float
    env: dict[str, str]


class Sandboxes:
    def __init__(
        self,
        config: Config,
        instance: Instance,
        store: Store,
        runtime: Runtime,
        storage: Storage,
        guests: GuestClient,
        pool: Pool,
        clock: Callable[[], float],
    ) -> None:
        self._pool = pool
        self._config = config
        self._instance = instance
        self._store = store
        self._runtime = runtime
        self._storage = storage
        self._guests = guests
        self._clock = clock
        self._lock = threading.Lock()
        self._begun = threading.Condition(self._lock)
        self._opening: dict[str, Future[None]] = {}
        self._in_hand: set[str] = set()
        self._uids = Uids()
        self._places = threading.BoundedSemaphore(_AT_ONCE)

    def await_first(self, session: str) -> None:
        """Let the caller who reserved the session begin: the sandbox is opened as that one wants it."""
        with self._begun:
            self._begun.wait_for(
                lambda: session in self._opening or not self._is_opening(session), _FIRST_SECONDS
            )

    def _is_opening(self, session_id: str) -> bool:
        session = self._store.session(session_id)
        return session is not None and session.state == "opening"

    def open(self, wanted: Wanted) -> None:
        """Open a session's sandbox; callers who ask for the same session meanwhile share the one opening."""
        with self._lock:
            opening = self._opening.get(wanted.session)
            if opening is None:
                mine = self._opening[wanted.session] = Future()
                self._begun.notify_all()
        if opening is not None:
            opening.result(timeout=3 * _READY_SECONDS)
            return
        try:
            self._open(wanted)
        except BaseException as exc:
            mine.set_exception(exc)
            raise
        else:
            mine.set_result(None)
        finally:
            with self._lock:
                del self._opening[wanted.session]

    def _open(self, wanted: Wanted) -> None:
        if not self._is_opening(wanted.session):
            return  # an earlier asking has done it, or nobody waits any more
        self._pool.note_demand(wanted.image)
        opened = self._claimed(wanted) or self._made(wanted)
        try:
            if not self._store.attach(wanted.session, opened.id, opened.address, self._clock()):
                raise RuntimeFailed("The session was given up while its sandbox was being opened.")
        except BaseException:
            self.close(opened.id)
            raise
        finally:
            self._let_go(opened.id)

    def _claimed(self, wanted: Wanted) -> Sandbox | None:
        """A warm one, told whose it is. They are all of the default size."""
        if (wanted.memory, wanted.cpus) != (self._config.memory, self._config.cpus):
            return None
        while (warm := self._pool.take(wanted.image)) is not None:
            try:
                self._guests.adopt(warm.sandbox, wanted.env)
                return warm.sandbox
            except (GuestSilent, GuestUnavailable):
                _log.warning("a warm sandbox was dead", extra={"fields": {"sandbox": warm.sandbox.id}})
                self.discard(warm.sandbox.id)
            finally:
                self._guests.forget(warm.sandbox.id)
        return None

    def _made(self, wanted: Wanted) -> Sandbox:
        """A new one. It stays in hand: the caller lets go of it, or closes it."""
        sandbox = secrets.token_hex(16)
        with self._places:
            uid = self._take_in_hand(sandbox)
            try:
                return self._start(sandbox, uid, wanted)
            except BaseException:
                self.discard(sandbox)
                raise

    def warm_up(self, image: str) -> Sandbox:
        """A sandbox for the pool, with its interpreters started. It stays in hand until it is claimed."""
        made = self._made(Wanted("", image, self._config.memory, self._config.cpus, {}))
        try:
            self._guests.prepare(made, self._config.pool_languages)
        except (GuestSilent, GuestUnavailable) as exc:
            self.discard(made.id)
            raise RuntimeFailed("A sandbox for the pool did not get ready.", str(exc)) from exc
        finally:
            self._guests.forget(made.id)
        return made

    def answers(self, sandbox: Sandbox) -> bool:
        try:
            return self._guests.is_bound(sandbox)
        except (GuestSilent, GuestUnavailable):
            return False

    def discard(self, sandbox: str) -> None:
        """Close what no session has."""
        try:
            self.close(sandbox)
        finally:
            self._let_go(sandbox)

    def is_busy(self) -> bool:
        """Whether somebody waits for a sandbox right now."""
        with self._lock:
            return bool(self._opening)

    @contextmanager
    def trial(self, wanted: Wanted) -> Iterator[Sandbox]:
        """A sandbox of nobody's, gone at the end of the block."""
        made = self._made(wanted)
        try:
            yield made
        finally:
            self._guests.forget(made.id)
            self.discard(made.id)

    def _start(self, sandbox: str, uid: int, wanted: Wanted) -> Sandbox:
        began = time.monotonic()
        secret = self._instance.guest_secret(sandbox)
        try:
            place = self._storage.create(sandbox, uid, secret, math.ceil(wanted.cpus))
        except OSError as exc:
            raise RuntimeFailed(
                "The host has no room for another sandbox: is its disk full?", str(exc)
            ) from exc
        image = self._config.images[wanted.image]
        spec = Spec(
            sandbox, image, uid, wanted.memory, wanted.cpus, place.run_dir, place.workspace, place.cpus_online
        )
        self._runtime.create(spec)
        self._await_guest(sandbox, place.run_dir / protocol.SOCKET_NAME)
        binding = Binding(
            uid=uid,
            processes=self._config.processes,
            executions=self._config.executions_max,
            output_limit=self._config.output_limit,
            log_limit=self._config.log_limit,
            env={**_BASE_ENV, **_cpu_env(wanted.cpus), **wanted.env},
        )
        opened = Sandbox(sandbox, place.address, secret)
        try:
            self._guests.bind(opened, binding, time.monotonic() + _READY_SECONDS)
        except GuestSilent as exc:
            raise RuntimeFailed("The sandbox started but its guest does not answer.") from exc
        finally:
            self._guests.forget(sandbox)
        _log.info(
            "opened", extra={"fields": {"sandbox": sandbox, "seconds": round(time.monotonic() - began, 3)}}
        )
        return opened

    def _await_guest(self, sandbox: str, path: Path) -> None:
        """In slices, so that a container that died at once is not waited for to the end."""
        deadline = time.monotonic() + _READY_SECONDS
        while not wait_for_name(path, 1.0):
            seen = self._runtime.inspect(sandbox)
            if seen is None or seen.cause is not None or time.monotonic() > deadline:
                raise RuntimeFailed(
                    "The sandbox did not start. Check that its image was built by ./quickstart.sh."
                )

    def close(self, sandbox: str) -> None:
        """Container, then files, then the uid: nobody else is given it while a file or process has it."""
        self._runtime.delete(sandbox)
        self._storage.delete(sandbox)
        self._uids.give_back(sandbox)

    def examine(self, session_id: str) -> str | None:
        """Why the session's sandbox is dead; the session is ended then. None while it lives."""
        session = self._store.session(session_id)
        if session is None or session.sandbox is None:
            return "lost"
        if session.state == "ended":
            return session.cause
        self._runtime.wait_dead(session.sandbox, _DEATH_SECONDS)
        seen = self._runtime.inspect(session.sandbox)
        cause = (
            "lost" if seen is None else seen.cause or self._forgetful(session.sandbox, session.address or "")
        )
        return self.bury(session_id, session.sandbox, cause) if cause is not None else None

    def _forgetful(self, sandbox: str, address: str) -> str | None:
        """A container that was restarted lives, but not as the session it was."""
        try:
            bound = self._guests.is_bound(Sandbox(sandbox, address, self._instance.guest_secret(sandbox)))
        except (GuestSilent, GuestUnavailable):
            return None  # it lives, and does not answer
        return None if bound else "engine_stopped"

    def rested_at(self, session: Session) -> float | None:
        """When the last command in a session ended; None while one runs, or when it cannot be told.

        A terminal that waits for somebody to type is not a command that runs.
        """
        assert session.sandbox is not None
        secret = self._instance.guest_secret(session.sandbox)
        try:
            told = self._guests.list(Sandbox(session.sandbox, session.address or "", secret))
        except (GuestSilent, GuestUnavailable):
            return None
        finally:
            self._guests.forget(session.sandbox)
        commands = [execution for execution in told if not execution.id.startswith(TERMINAL)]
        if any(execution.ended_at is None for execution in commands):
            return None
        return max((execution.ended_at or 0.0 for execution in commands), default=session.last_used_at)

    def bury(self, session_id: str, sandbox: str, cause: str) -> str:
        self._store.end(session_id, cause, self._clock())
        _log.warning(
            "sandbox died", extra={"fields": {"session": session_id, "sandbox": sandbox, "cause": cause}}
        )
        self.close(sandbox)
        return cause

    def in_hand(self) -> set[str]:
        """Sandboxes in the middle of being opened: theirs is not for the reconciler to judge."""
        with self._lock:
            return set(self._in_hand)

    def claim_uids(self, survivors: Iterable[Seen]) -> None:
        self._uids.claim(survivors)

    def _take_in_hand(self, sandbox: str) -> int:
        uid = self._uids.take(sandbox)
        with self._lock:
            self._in_hand.add(sandbox)
        return uid

    def _let_go(self, sandbox: str) -> None:
        with self._lock:
            self._in_hand.discard(sandbox)


def _cpu_env(cpus: float) -> dict[str, str]:
    """What tells programs how many threads make sense. coreutils' nproc heeds the first one too."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_MAX_THREADS")
    return dict.fromkeys((*names, "GOMAXPROCS", "PYTHON_CPU_COUNT"), str(math.ceil(cpus)))


_BASE_ENV = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/workspace",
    "USER": "user",
    "LOGNAME": "user",
    "SHELL": "/bin/bash",
    "LANG": "C.UTF-8",
    "TERM": "xterm-256color",
}
