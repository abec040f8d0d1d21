"""How times are told."""

from __future__ import annotations

from datetime import datetime, timezone


def timestamp(seconds: float) -> str:
    """RFC 3339, UTC."""
    moment = datetime.fromtimestamp(seconds, tz=timezone.utc)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
