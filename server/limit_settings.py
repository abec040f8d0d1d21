"""The settings about limits: what a tenant may have, how often it may ask, what the host can bear.

A quota has a short name (`sessions`, `memory`, ...). A tenant may have values of its own for each, and
`user.NAME` is the same for each of its users apart.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass

from server.settings import amount, byte_count, count, factor, or_none, rate, seconds, setting

Quantity = float | int | None  # None: no limit
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# What a quota's value may be, by its name.
QUOTAS = {
    "sessions": or_none(count),
    "memory": or_none(byte_count),
    "cpus": or_none(factor),
    "disk": or_none(byte_count),
    "executions": or_none(count),
    "streams": or_none(count),
    "exec_seconds": or_none(seconds),
    "bytes": or_none(byte_count),
    "workspaces": or_none(count),
}
OF_TENANTS = frozenset({"sessions", "workspaces"})  # a user has one session already, and owns no workspace
_STORAGE = re.compile(r"embedded|(rediss?|redis\+unix)://\S+")


def quotas_from(given: Mapping[str, object]) -> dict[str, Quantity]:
    """Values by name, from texts or numbers; None and `none` lift a limit. Raises ValueError."""
    found = {}
    for name, value in given.items():
        cast = QUOTAS.get(name.removeprefix("user."))
        if cast is None or name in {f"user.{one}" for one in OF_TENANTS}:
            known = ", ".join([*QUOTAS, *(f"user.{one}" for one in QUOTAS if one not in OF_TENANTS)])
            raise ValueError(f"must be of these names: {known}; {name[:64]!r} is none")
        try:
            found[name] = cast(_text(value))
        except ValueError as exc:
            reason = str(exc) if str(exc).startswith("must") else "must be a number"
            raise ValueError(f"{name} {reason}") from exc
    return found


def _text(value: object) -> str:
    if value is not None and (isinstance(value, bool) or not isinstance(value, str | int | float)):
        raise ValueError("must be a number")
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return "none" if value is None else str(value)


def _user_limits(raw: str) -> dict[str, Quantity]:
    pairs = dict(part.strip().partition("=")[::2] for part in raw.split(",") if part.strip())
    try:
        return {
            name.removeprefix("user."): value
            for name, value in quotas_from({f"user.{name}": text for name, text in pairs.items()}).items()
        }
    except ValueError as exc:
        raise ValueError(f"must be NAME=VALUE, comma-separated: {exc}") from exc


def _networks(raw: str) -> tuple[Network, ...]:
    try:
        return tuple(ipaddress.ip_network(part.strip()) for part in raw.split(",") if part.strip())
    except ValueError as exc:
        raise ValueError("must be addresses or networks, such as 10.0.0.0/8, comma-separated") from exc


def _storage(raw: str) -> str:
    if not _STORAGE.fullmatch(raw):
        raise ValueError("must be embedded, or an address such as redis://127.0.0.1:6379/0")
    return raw


def _size_or_auto(raw: str) -> int:
    return 0 if raw.strip().lower() in ("", "auto") else byte_count(raw)


@dataclass(frozen=True)
class LimitSettings:
    sessions_max: int = setting("100", count, "live sessions a tenant may have")
    tenant_memory: int | None = setting(
        "none", or_none(byte_count), "memory of all live sessions of a tenant"
    )
    tenant_cpus: float | None = setting("none", or_none(factor), "CPUs of all live sessions of a tenant")
    tenant_executions_max: int = setting("512", count, "commands a tenant may run or queue at once")
    streams_max: int = setting("512", count, "event streams and terminals a tenant may have open")
    exec_seconds_per_day: float | None = setting(
        "none", or_none(seconds), "seconds that a tenant's commands may run for in a day, all together"
    )
    bytes_per_day: int | None = setting(
        "none", or_none(byte_count), "bytes that a tenant may send and receive in a day"
    )
    tenant_workspaces: int | None = setting(
        "1000", or_none(count), "workspaces with a name a tenant may keep"
    )
    user_limits: Mapping[str, Quantity] = setting(
        "", _user_limits, "quotas of each user of a tenant, such as memory=2g,executions=8"
    )
    queue_max: int = setting("256", amount, "creates that may wait for a place at once; 0: none")
    memory_overcommit: float = setting(
        "1", factor, "memory promised to sessions, as a multiple of what the host has for them"
    )
    memory_reserve: int = setting(
        "auto", _size_or_auto, "memory that is not for sessions; auto: a tenth, 256m at least, 4g at most"
    )
    rate_create: str = setting("100/second", rate, "requests of one tenant that open sessions")
    rate_execute: str = setting("2000/second", rate, "requests of one tenant that run commands")
    rate_files: str = setting("1000/second", rate, "requests of one tenant about files and workspaces")
    rate_read: str = setting("2000/second", rate, "all other requests of one tenant")
    rate_address: str = setting("500/second", rate, "requests without a key from one address")
    failure_limit: str = setting("60/minute", rate, "wrong keys from one address")
    ratelimit_storage: str = setting(
        "embedded", _storage, "where rates are counted: embedded, or redis://... for several servers"
    )
    proxies: tuple[Network, ...] = setting(
        "127.0.0.1,::1", _networks, "addresses of proxies whose X-Forwarded-For is believed"
    )
