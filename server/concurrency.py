"""What runs and streams right now, counted against tenants, their users and sessions, over all web workers.

Whoever waits for its command is counted in memory (`tally`), what outlives its call in the store
(`detached`). The quotas of a day are asked here, too: nothing new begins once they are used up.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from server import errors
from server.day_usage import DayUsage
from server.detached import Detached, NoRoom, One
from server.guest_refusals import SESSION_STREAMS
from server.quota_rows import QuotaRows
from server.quotas import NO_LIMIT
from server.store import Session
from server.tally import Tally
from server.usage_rows import Used

_RECOUNT_SECONDS = 1.0
_MOMENT = 0.1
_MOST_KNOWN = 4096

Ended = Callable[[str, str], dict[str, float | None]]  # executions of a session, and how long they took


class Concurrency:
    def __init__(
        self,
        quotas: QuotaRows,
        usage: DayUsage,
        detached: Detached,
        tally: Tally,
        clock: Callable[[], float],
    ) -> None:
        self._quotas = quotas
        self._usage = usage
        self._detached = detached
        self._tally = tally
        self._clock = clock
        self._counted: dict[tuple[str, str | None], tuple[int, float]] = {}
        self._recounted: dict[str, float] = {}

    def enter_execution(self, session: Session, ended: Ended) -> Callable[[], None]:
        """One more that its caller waits for, until what is returned is called."""
        self.check_day(session.tenant, session.user_id)
        entered = ExitStack()
        for user, most in self._places(session).items():
            allowed = most - self._running_apart(session.tenant, user, most, ended)
            whose = _whose(session.tenant, user)
            if not self._tally.enter("executions", whose, allowed):
                entered.close()
                raise errors.TooManyExecutions(most, _scope(user))
            entered.callback(self._tally.leave, "executions", whose)
        return entered.close

    def detach(self, session: Session, one: One, ended: Ended) -> bool:
        """One more that goes on by itself; whether it is new."""
        self.check_day(session.tenant, session.user_id)
        places = self._places(session)
        room: dict[str | None, int] = {}
        for user, most in places.items():
            self._running_apart(one.tenant, user, most, ended)  # counts anew if need be
            room[user] = most - self._tally.count("executions", _whose(one.tenant, user))
            self._counted.pop((one.tenant, user), None)
        try:
            return self._detached.add(one, self._clock(), room)
        except NoRoom as exc:
            raise errors.TooManyExecutions(places[exc.user], _scope(exc.user)) from exc

    def enter_stream(self, tenant: str, session_id: str | None, user: str | None) -> Callable[[], None]:
        """Counts one more open stream, until what is returned is called. Some are of no session."""
        quotas = self._quotas.of(tenant)
        places = [("tenant", tenant, quotas.most("streams"))]
        if user is not None:
            places.append(("user", _whose(tenant, user), quotas.most("streams", "user")))
        if session_id is not None:
            places.append(("session", f"{tenant}/{session_id}", SESSION_STREAMS))
        entered = ExitStack()
        for scope, whose, most in places:
            if not self._tally.enter("streams", whose, most):
                entered.close()
                raise errors.TooManyStreams(most, scope)
            entered.callback(self._tally.leave, "streams", whose)
        return entered.close

    def check_day(self, tenant: str, user: str | None) -> None:
        """Raises when the day's seconds or bytes are used up. Without such a quota nothing is asked."""
        self._check(tenant, user, ("exec_seconds", "bytes"))

    def check_bytes(self, tenant: str, user: str | None) -> None:
        self._check(tenant, user, ("bytes",))

    def _check(self, tenant: str, user: str | None, names: tuple[str, ...]) -> None:
        quotas = self._quotas.of(tenant)
        for whose, given in ((None, quotas.tenant), (user, quotas.user)):
            allowed = {name: most for name in names if (most := given[name]) is not None}
            if not allowed or (user is None and given is quotas.user):
                continue
            used = used_by_name(self._usage.used(tenant, whose))
            for name, most in allowed.items():
                if used[name] >= most:
                    raise self._until_tomorrow(name, used[name], most, _scope(whose))

    def in_use(self, tenant: str, user: str | None) -> dict[str, float]:
        """Running executions and open streams, and what was used today."""
        whose = _whose(tenant, user)
        apart = self._detached.count(tenant, user, self._clock())
        return {
            "executions": apart + self._tally.count("executions", whose),
            "streams": self._tally.count("streams", whose),
            **used_by_name(self._usage.used(tenant, user)),
        }

    def _until_tomorrow(self, limit: str, used: float, allowed: float, scope: str) -> errors.QuotaExceeded:
        words = f"This {scope} has used {used:.10g} of '{limit}' and may use {allowed:.10g} in a day (UTC)."
        refusal = errors.QuotaExceeded(limit, used, allowed, scope, words)
        refusal.retry_after = self._usage.seconds_until_tomorrow()
        return refusal

    def _places(self, session: Session) -> dict[str | None, int]:
        """How many executions there may be: of the tenant (None), and of the session's user."""
        quotas = self._quotas.of(session.tenant)
        places: dict[str | None, int] = {None: quotas.most("executions")}
        if session.user_id is not None:
            places[session.user_id] = quotas.most("executions", "user")
        return places

    def _running_apart(self, tenant: str, user: str | None, most: int, ended: Ended) -> int:
        """How many are detached. Far from the limit a number of a moment ago is good enough."""
        if most == NO_LIMIT:
            return 0
        now, whose = self._clock(), (tenant, user)
        count, counted_at = self._counted.get(whose, (most, 0.0))
        if count < most // 2 and abs(now - counted_at) < _MOMENT:
            return count
        count = self._detached.count(tenant, user, now)
        if count + self._tally.count("executions", _whose(tenant, user)) >= most and self._may_recount(
            tenant
        ):
            self._recount(tenant, ended)
            count = self._detached.count(tenant, user, now)
        if len(self._counted) >= _MOST_KNOWN:
            self._counted.clear()
        self._counted[whose] = (count, now)
        return count

    def _may_recount(self, tenant: str) -> bool:
        now = self._clock()
        if abs(now - self._recounted.get(tenant, 0.0)) < _RECOUNT_SECONDS:
            return False
        self._recounted[tenant] = now
        return True

    def _recount(self, tenant: str, ended: Ended) -> None:
        """At its limit: some may have ended without anybody having been there."""
        for session_id, executions in self._detached.of(tenant).items():
            try:
                known = ended(tenant, session_id)
            except errors.SandboxError:
                continue  # one that cannot be asked keeps what it is counted for
            for execution in executions:
                if known.get(execution, 0.0) is not None:
                    self._detached.remove(session_id, execution, known.get(execution))


def used_by_name(used: Used) -> dict[str, float]:
    return {"exec_seconds": round(used.seconds, 3), "bytes": used.received + used.sent}


def _scope(user: str | None) -> str:
    return "tenant" if user is None else "user"


def _whose(tenant: str, user: str | None) -> str:
    return tenant if user is None else f"{tenant}\0{user}"
