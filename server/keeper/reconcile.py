"""Store, engine, directories and processes compared: what nobody owns goes, what is dead is said so.

Idempotent, and safe beside everything else: what is being opened right now is left alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from server.config import Config
from server.keeper.inhabitants import evict, inhabitants
from server.keeper.names import is_identifier
from server.keeper.runtime import Runtime, RuntimeFailed
from server.keeper.sandboxes import Sandboxes
from server.keeper.storage import Storage
from server.keeper.strays import remove_strays
from server.store import Store

_log = logging.getLogger("sandbox.reconcile")


def reconcile(
    config: Config,
    store: Store,
    runtime: Runtime,
    storage: Storage,
    sandboxes: Sandboxes,
    clock: Callable[[], float],
) -> int:
    """Returns how many things were found that nobody owned, or that were dead without being known to be.

    The order of looking matters: a sandbox that is opened meanwhile is in hand before it is in the engine,
    and in the store before it leaves our hands.
    """
    directories = set(storage.list())
    seen = {sandbox.id: sandbox for sandbox in runtime.seen()}
    in_hand = sandboxes.in_hand()
    owned = {session.sandbox: session.id for session in store.running() if session.sandbox is not None}
    found = 0
    for sandbox in seen.values():
        if sandbox.paused and sandbox.id not in in_hand and storage.is_pause_ours(sandbox.id):
            runtime.resume(sandbox.id)  # the keeper that paused it has died
            storage.forget_pause(sandbox.id)
    for name in (seen.keys() | directories) - owned.keys() - in_hand:
        _log.warning("swept a sandbox that nobody owns", extra={"fields": {"sandbox": name}})
        sandboxes.close(name)
        found += 1
    for name, session in owned.items():
        cause = "lost" if name not in seen else seen[name].cause
        if not is_identifier(name):
            store.end(session, "lost", clock(), name)  # the row was altered: there is nothing to remove
            found += 1
        elif cause is not None and _still_so(runtime, name):
            sandboxes.bury(session, name, cause)
            found += 1
    found += _evict_strays(config, store, runtime, sandboxes)
    return found + _remove_strays(config, store, sandboxes)


def _evict_strays(config: Config, store: Store, runtime: Runtime, sandboxes: Sandboxes) -> int:
    """Processes in sandboxes that even the engine has forgotten, and shims of those: it was restarted when
    it had just begun to start or to remove one."""
    before = inhabitants(config.sandboxes_dir)
    known = {sandbox.id for sandbox in runtime.seen()} | sandboxes.in_hand()
    known |= {session.sandbox for session in store.running() if session.sandbox is not None}
    strays = before.keys() - known
    for name in strays:
        _log.warning("ended what lived in a forgotten sandbox", extra={"fields": {"sandbox": name}})
        evict(config.sandboxes_dir, name)
    return len(strays)


def _remove_strays(config: Config, store: Store, sandboxes: Sandboxes) -> int:
    in_hand = sandboxes.in_hand()
    owned = {session.sandbox for session in store.running() if session.sandbox is not None}
    try:
        return remove_strays(config, owned - in_hand)
    except OSError as exc:
        raise RuntimeFailed("What lies over workspaces could not be removed yet.", str(exc)) from exc


def _still_so(runtime: Runtime, sandbox: str) -> bool:
    """It may have been opened between the two looks."""
    now = runtime.inspect(sandbox)
    return now is None or now.cause is not None
