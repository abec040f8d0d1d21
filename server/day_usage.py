"""What a tenant and its users have used today: seconds that commands ran, and bytes in and out.

Counted where all web workers see it, each in a lane of its own (see `lanes`): no write on disk for a command,
and nothing is lost when a process is killed. Commands that are still running count, too. The keeper writes
it all down once a minute; what finds no place in memory is charged in the store at once.
"""

from __future__ import annotations

import mmap
import struct
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from server.config import Config
from server.lanes import KEY_BYTES, TRIES, Lanes
from server.store import Store
from server.usage_rows import Day, UsageRows, Used

DAY_SECONDS = 86400
_PLACES = 4096
# The key, its day, how many run, when they began (all added up), seconds, bytes received and sent.
_PLACE = struct.Struct("<QIIddQQ")
_VALUES = struct.Struct("<IIddQQ")


@dataclass(frozen=True)
class Running:
    """A command that is being counted: for whom, since when."""

    tenant: str
    users: tuple[str, ...]
    day: int
    since: float


class DayUsage:
    def __init__(
        self,
        path: Path,
        workers: int,
        rows: UsageRows,
        longest: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._lanes = Lanes(path, workers, _PLACES, _PLACE.size, self._settle)
        self._rows = rows
        self._longest = longest
        self._clock = clock

    @property
    def today(self) -> int:
        return int(self._clock() // DAY_SECONDS)

    def begin(self, tenant: str, user: str | None) -> Running:
        """A command runs from now on."""
        now = self._clock()
        one = Running(tenant, ("", user) if user else ("",), int(now // DAY_SECONDS), now)
        for whose in one.users:
            self._add(tenant, whose, one.day, 1, now, Used())
        return one

    def end(self, one: Running, seconds: float | None) -> None:
        """It has run so long; None: until now."""
        used = Used(max(0.0, self._clock() - one.since) if seconds is None else seconds)
        for whose in one.users:
            self._add(one.tenant, whose, one.day, -1, -one.since, used)

    def add(self, tenant: str, user: str | None, received: int, sent: int) -> None:
        for whose in ("", user) if user else ("",):
            self._add(tenant, whose, self.today, 0, 0.0, Used(0.0, received, sent))

    def used(self, tenant: str, user: str | None = None) -> Used:
        """Today, up to now."""
        now, whose = self._clock(), user or ""
        day = int(now // DAY_SECONDS)
        counted = self._counted(self._lanes.opened(), tenant, whose, day, now)
        apart = Used(self._rows.going_on(tenant, whose, now))
        return counted + self._rows.charged(tenant, whose, day) + apart

    def seconds_until_tomorrow(self) -> int:
        return DAY_SECONDS - int(self._clock() % DAY_SECONDS)

    def write_down(self) -> None:
        """For the keeper. A day is written down for the last time when it is over."""
        shared, now = self._lanes.looked_at(), self._clock()
        if shared is None:
            return
        names = self._rows.names(self.today - 1)
        counted = [Day(*name, self._counted(shared, *name, now)) for name in names]
        self._rows.write_down(counted, self.today)

    def _counted(self, shared: mmap.mmap, tenant: str, user: str, day: int, now: float) -> Used:
        key, place = self._lanes.spot(_name(tenant, user, day))
        seconds, received, sent = 0.0, 0, 0
        for start in range(place, len(shared), self._lanes.lane_bytes):
            offset = self._lanes.find(shared, start, key)
            if offset >= 0:
                _, running, since, ran, came, went = _VALUES.unpack_from(shared, offset + KEY_BYTES)
                seconds += ran + (max(0.0, running * now - since) if running else 0.0)
                received, sent = received + came, sent + went
        return Used(seconds, received, sent)

    def _add(self, tenant: str, user: str, day: int, running: int, since: float, used: Used) -> None:
        shared = self._lanes.opened()
        offset = self._place(shared, tenant, user, day)
        if offset < 0:
            self._rows.add(tenant, user, day, used)
            return
        at = offset + KEY_BYTES
        _, was_running, was_since, seconds, received, sent = _VALUES.unpack_from(shared, at)
        now_running = max(0, was_running + running)
        _VALUES.pack_into(
            shared,
            at,
            day,
            now_running,
            was_since + since if now_running else 0.0,
            seconds + used.seconds,
            received + used.received,
            sent + used.sent,
        )

    def _place(self, shared: mmap.mmap, tenant: str, user: str, day: int) -> int:
        """Its own, else one of a day that is long over; -1 if there is none."""
        if self._lanes.mine is None:
            return -1
        key, place = self._lanes.spot(_name(tenant, user, day))
        start = self._lanes.mine + place
        offset = self._lanes.find(shared, start, key)
        if offset >= 0:
            return offset
        for offset in range(start, start + TRIES * _PLACE.size, _PLACE.size):
            if _PLACE.unpack_from(shared, offset)[1] < day - 1:
                self._rows.begin(tenant, user, day)
                shared[offset : offset + _PLACE.size] = key + _VALUES.pack(day, 0, 0.0, 0.0, 0, 0)
                return offset
        return -1

    def _settle(self, shared: mmap.mmap, free: Iterable[int]) -> None:
        """What the dead were waiting for is charged up to now: it is not known when they died."""
        now = self._clock()
        for start in free:
            for offset in range(start, start + self._lanes.lane_bytes, _PLACE.size):
                key, day, running, since, seconds, *traffic = _PLACE.unpack_from(shared, offset)
                if running:
                    ran = min(running * now - since, running * self._longest)
                    _PLACE.pack_into(shared, offset, key, day, 0, 0.0, seconds + max(0.0, ran), *traffic)


def usage_of(config: Config, store: Store) -> DayUsage:
    path = config.store_path.with_name("usage")
    return DayUsage(path, config.web_workers, UsageRows(store), config.timeout_max)


def _name(tenant: str, user: str, day: int) -> str:
    return f"{tenant}\0{user}\0{day}"
