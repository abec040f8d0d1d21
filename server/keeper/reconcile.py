"""Store, engine and directories compared in both directions: what nobody owns goes, what is dead is said so.

Idempotent, and safe beside everything else: what is being opened right now is left alone.
"""

from __future__ import annotations

import logging

from server.keeper.runtime import Runtime
from server.keeper.sandboxes import Sandboxes
from server.keeper.storage import Storage
from server.store import Store

_log = logging.getLogger("sandbox.reconcile")


def reconcile(store: Store, runtime: Runtime, storage: Storage, sandboxes: Sandboxes) -> int:
    """Returns how many things were found that nobody owned, or that were dead without being known to be.

    The order of looking matters: a sandbox that is opened meanwhile is in hand before it is in the engine,
    and in the store before it leaves our hands.
    """
    directories = set(storage.list())
    seen = {sandbox.id: sandbox for sandbox in runtime.seen()}
    in_hand = sandboxes.in_hand()
    owned = {session.sandbox: session.id for session in store.running() if session.sandbox is not None}
    found = 0
    for sandbox in (seen.keys() | directories) - owned.keys() - in_hand:
        _log.warning("swept a sandbox that nobody owns", extra={"fields": {"sandbox": sandbox}})
        sandboxes.close(sandbox)
        found += 1
    for sandbox, session in owned.items():
        cause = "lost" if sandbox not in seen else seen[sandbox].cause
        if cause is not None and _still_so(runtime, sandbox):
            sandboxes.bury(session, sandbox, cause)
            found += 1
    return found


def _still_so(runtime: Runtime, sandbox: str) -> bool:
    """It may have been opened between the two looks."""
    now = runtime.inspect(sandbox)
    return now is None or now.cause is not None
