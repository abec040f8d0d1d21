"""What a tenant has at this moment: for the operator, who pays for it.

What was used today is as old as the keeper's last writing down: a minute at most.
"""

from __future__ import annotations

from server.quota_rows import HAS_SANDBOX
from server.store import Store

_LIVE = "FROM sessions WHERE tenant = :tenant AND state != 'ended'"
_TODAY = "FROM usage WHERE tenant = :tenant AND user_id = '' AND day = :day"
_FACTS = {
    "sessions": f"SELECT count(*) {_LIVE}",
    "memory": f"SELECT coalesce(sum(memory), 0) {_LIVE} AND {HAS_SANDBOX}",
    "cpus": f"SELECT coalesce(sum(cpus), 0.0) {_LIVE} AND {HAS_SANDBOX}",
    "disk": f"SELECT coalesce(sum(disk), 0) {_LIVE}",
    "background_executions": "SELECT count(*) FROM detached WHERE tenant = :tenant AND until > :now",
    "workspaces": "SELECT count(*) FROM workspaces WHERE tenant = :tenant",
    "snapshots": "SELECT count(*) FROM snapshots WHERE tenant = :tenant AND kind = 'snapshot'",
    "uploads": "SELECT count(*) FROM uploads WHERE tenant = :tenant AND expires_at > :now",
    "upload_bytes": "SELECT coalesce(sum(size), 0) FROM uploads WHERE tenant = :tenant AND expires_at > :now",
    "keys": """SELECT count(*) FROM keys WHERE tenant = :tenant AND revoked_at IS NULL
               AND (expires_at IS NULL OR expires_at > :now)""",
    "exec_seconds_today": f"SELECT round(coalesce(sum(seconds + mapped_seconds), 0.0), 3) {_TODAY}",
    "bytes_received_today": f"SELECT coalesce(sum(received + mapped_received), 0) {_TODAY}",
    "bytes_sent_today": f"SELECT coalesce(sum(sent + mapped_sent), 0) {_TODAY}",
}


class Usage:
    def __init__(self, store: Store) -> None:
        self._store = store

    def of(self, tenant: str, now: float) -> dict[str, int | float]:
        """By name. Bytes are those promised to live sessions (`memory`, `disk`) or kept (`upload_bytes`)."""
        values = {"tenant": tenant, "now": now, "day": int(now // 86400)}
        return {name: self._store.quickly(sql, values).fetchone()[0] for name, sql in _FACTS.items()}
