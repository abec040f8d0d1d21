"""What the web and the keeper write into the audit with. Recording never fails; acting on may be refused.

What cannot be written is held back and written first thing later, and until then nothing more is done that
would have to be recorded. Refusals beyond a measure are counted and summed up: a flood fills no disk.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from server.audit.chain import ANONYMOUS, Act
from server.audit.ledger import Ledger, LedgerFailed
from server.errors import StoreUnavailable

WINDOW = 60.0
_ONE_BY_ONE = {ANONYMOUS: 300}  # refusals recorded in a window, by each process
_ONE_BY_ONE_OF_A_TENANT = 3000
_MOST_HELD = 1000
_MOST_ADDRESSES = 8

_log = logging.getLogger("sandbox.audit")


@dataclass
class _Flood:
    """The refusals of one chain in one window."""

    since: float
    seen: int = 0
    codes: Counter[str] = field(default_factory=Counter)
    addresses: dict[str, None] = field(default_factory=dict)

    def count(self, act: Act) -> None:
        self.codes[act.code or ""] += 1
        if act.address is not None and len(self.addresses) < _MOST_ADDRESSES:
            self.addresses[act.address] = None

    def sum(self, now: float) -> Act:
        details = {
            "count": self.codes.total(),
            "codes": dict(self.codes),
            "addresses": list(self.addresses),
            "seconds": round(now - self.since, 3),
        }
        return Act(now, "refusals.summed", "refused", "server", details=details)


class Journal:
    def __init__(self, ledger: Ledger, clock: Callable[[], float]) -> None:
        self.ledger = ledger
        self._clock = clock
        self._held: deque[tuple[str, Act]] = deque()
        self._lost = 0
        self._floods: dict[str, _Flood] = {}
        self._over_at = float("inf")

    def record(self, chain: str, act: Act) -> None:
        if act.outcome == "refused" and self._is_flooded(chain, act):
            return
        self._write(chain, act)

    def settle(self) -> None:
        """Sum up the floods whose window is over. Costs nothing when there is none."""
        now = self._clock()
        if now < self._over_at:
            return
        over = {chain: flood for chain, flood in self._floods.items() if now >= flood.since + WINDOW}
        for chain, flood in over.items():
            del self._floods[chain]
            if flood.codes:
                self._write(chain, flood.sum(now))
        self._over_at = min((flood.since + WINDOW for flood in self._floods.values()), default=float("inf"))

    def check(self) -> None:
        """Before something is done: raises StoreUnavailable while what was done before cannot be recorded."""
        if not self._held:
            return
        try:
            self._write_held()
        except LedgerFailed as exc:
            raise StoreUnavailable("What is done cannot be recorded right now. Try again shortly.") from exc

    def _is_flooded(self, chain: str, act: Act) -> bool:
        flood = self._floods.get(chain)
        if flood is not None and not 0 <= act.at - flood.since < WINDOW:
            self.settle()
            flood = self._floods.get(chain)
        if flood is None:
            flood = self._floods[chain] = _Flood(act.at)
            self._over_at = min(self._over_at, act.at + WINDOW)
        flood.seen += 1
        if flood.seen <= _ONE_BY_ONE.get(chain, _ONE_BY_ONE_OF_A_TENANT):
            return False
        flood.count(act)
        return True

    def _write(self, chain: str, act: Act) -> None:
        try:
            if self._held:
                self._write_held()
            self.ledger.append(chain, [act])
        except LedgerFailed:
            self._hold(chain, act)

    def _hold(self, chain: str, act: Act) -> None:
        if len(self._held) >= _MOST_HELD:
            self._lost += 1
            return
        self._held.append((chain, act))

    def _write_held(self) -> None:
        while self._held:
            chain, act = self._held[0]
            self.ledger.append(chain, [replace(act, details={**act.details, "late": True})])
            self._held.popleft()
        if self._lost:
            _log.error(
                "records were lost while the audit could not be written",
                extra={"fields": {"lost": self._lost}},
            )
            self._lost = 0
