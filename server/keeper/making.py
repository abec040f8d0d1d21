"""Making sandboxes and unmaking them: the engine, the storage and the guest, in the right order.

What is being made, waits in the pool or is being closed is in hand here: nobody may take it for a leftover.
"""

from __future__ import annotations

import logging
import math
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager

from server.config import Config
from server.errors import GuestUnavailable
from server.guest import protocol
from server.guest_client import Binding, GuestClient, GuestSilent, Sandbox
from server.instance import Instance
from server.keeper.appearance import wait_for_guest
from server.keeper.environment import BASE_ENV, cpu_env
from server.keeper.furnishing import Furnishing
from server.keeper.in_hand import InHand
from server.keeper.names import identifier
from server.keeper.runtime import Problem, Runtime, RuntimeFailed, Seen, Spec, Unreached
from server.keeper.storage import Furniture, Storage
from server.keeper.uids import Uids
from server.keeper.wanted import Wanted

_READY_SECONDS = 30.0
_FAILING, _FAILING_SECONDS = 3, 60.0  # in a row, within which no sandbox can be opened
_AT_ONCE = 8  # engine calls in flight for opening; more only make each other slower

_log = logging.getLogger("sandbox.keeper")


class Making:
    def __init__(
        self,
        config: Config,
        instance: Instance,
        runtime: Runtime,
        storage: Storage,
        furnishing: Furnishing,
        guests: GuestClient,
        freed: Callable[[], None],
    ) -> None:
        """`freed` is called when a sandbox is gone."""
        self._config = config
        self._instance = instance
        self._runtime = runtime
        self._storage = storage
        self._furnishing = furnishing
        self._guests = guests
        self._freed = freed
        self._in_hand = InHand()
        self._uids = Uids(instance.id)
        self._places = threading.BoundedSemaphore(_AT_ONCE)
        self._failures: deque[tuple[float, Problem]] = deque(maxlen=_FAILING)

    def make(self, wanted: Wanted, furniture: Furniture) -> Sandbox:
        """A new one. It stays in hand: the caller lets go of it, or closes it."""
        sandbox = secrets.token_hex(16)
        with self._places:
            uid = self._take_in_hand(sandbox)
            try:
                made = self._start(sandbox, uid, wanted, furniture)
            except Unreached:
                self._forget(sandbox)
                raise
            except BaseException as exc:
                self._note_failure(exc)
                self.discard(sandbox)
                raise
            self._failures.clear()
            return made

    def _note_failure(self, exc: BaseException) -> None:
        failed = Problem("The keeper failed. Its log says why.")
        problem = exc.problem if isinstance(exc, RuntimeFailed) else failed
        self._failures.append((time.monotonic(), problem))

    def failing(self) -> Problem | None:
        """What the last ones that were to be made came to, if none of them was."""
        failures = list(self._failures)
        recent = [problem for at, problem in failures if at > time.monotonic() - _FAILING_SECONDS]
        return recent[-1] if len(recent) == _FAILING else None

    def _start(self, sandbox: str, uid: int, wanted: Wanted, furniture: Furniture) -> Sandbox:
        began = time.monotonic()
        secret = self._instance.guest_secret(sandbox)
        try:
            cpus, gvisor = math.ceil(wanted.cpus), self._runtime.oci().is_gvisor
            place = self._storage.create(sandbox, uid, secret, cpus, wanted.memory, made_by_root=gvisor)
            mounted = self._storage.furnish(sandbox, furniture)
        except OSError as exc:
            raise RuntimeFailed(
                "The host has no room for another sandbox: is its disk full?", str(exc)
            ) from exc
        image = self._config.images[wanted.image]
        paths = (place.run_dir, place.workspace, place.data, place.cpus_online, place.machine)
        self._runtime.create(Spec(sandbox, image, uid, wanted.memory, wanted.cpus, *paths))
        wait_for_guest(self._runtime, sandbox, place.run_dir / protocol.SOCKET_NAME, _READY_SECONDS)
        opened = Sandbox(sandbox, place.address, secret)
        seen = self._bound(opened, uid, wanted, furniture)
        if mounted not in (None, seen) and not gvisor:
            raise RuntimeFailed("The engine does not see what the keeper mounts: are they on one host?")
        _log.info(
            "opened", extra={"fields": {"sandbox": sandbox, "seconds": round(time.monotonic() - began, 3)}}
        )
        return opened

    def _bound(self, sandbox: Sandbox, uid: int, wanted: Wanted, furniture: Furniture) -> tuple[int, ...]:
        """Tell the guest whom it serves. Device and inode of the home that it sees."""
        binding = Binding(
            uid=uid,
            processes=self._config.processes,
            executions=self._config.executions_max,
            output_limit=self._config.output_limit,
            log_limit=self._config.log_limit,
            soft_disk=wanted.disk if self._furnishing.is_soft else None,
            env={**BASE_ENV, **cpu_env(wanted.cpus), **wanted.env},
        )
        try:
            self._guests.bind(sandbox, binding, time.monotonic() + _READY_SECONDS)
            return self._guests.adopt(sandbox, {}, furniture.shell)
        except GuestSilent as exc:
            raise RuntimeFailed("The sandbox started but its guest does not answer.") from exc
        except GuestUnavailable as exc:
            raise RuntimeFailed(exc.detail) from exc
        finally:
            self._guests.forget(sandbox.id)

    def _forget(self, sandbox: str) -> None:
        """Remove what was made for one that the engine never heard of."""
        try:
            self._storage.delete(sandbox)
            self._uids.give_back(sandbox)
        finally:
            self.let_go(sandbox)

    def discard(self, sandbox: str) -> None:
        """Close what no session has."""
        self._guests.forget(sandbox)
        try:
            self.close(sandbox)
        finally:
            self.let_go(sandbox)

    def close(self, sandbox: str) -> None:
        """Container, then files, then the uid: nobody else is given it while a file or process has it.

        Whatever else lies about on the host is the sweep's.
        """
        try:
            with self._in_hand.holding(identifier(sandbox)):
                volume = self._storage.volume_of(sandbox)
                self._runtime.delete(sandbox)
                self._storage.delete(sandbox)
                self._uids.give_back(sandbox)
                self._furnishing.drop_left(sandbox, volume)
        finally:
            self._freed()

    def in_hand(self) -> set[str]:
        """Sandboxes that are being opened or closed, or wait in the pool."""
        return self._in_hand.all()

    def holding(self, sandbox: str) -> AbstractContextManager[None]:
        """In hand during the block, although it is a session's."""
        return self._in_hand.holding(sandbox)

    def claim_uids(self, survivors: Iterable[Seen]) -> None:
        self._uids.claim(survivors)

    def _take_in_hand(self, sandbox: str) -> int:
        uid = self._uids.take(sandbox)
        self._in_hand.take(sandbox)
        return uid

    def let_go(self, sandbox: str) -> None:
        self._in_hand.let_go(sandbox)
