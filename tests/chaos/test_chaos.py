"""Everything that can die dies at random under load, and every promise is kept.

No acknowledged result is lost, no session given to somebody else, every call answered in time with a result
or a typed problem, nothing left behind, and every count is true afterwards. CHAOS_SEED and CHAOS_SECONDS make
it another run, or a longer one: `make chaos`.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence

import pytest
from callers import Caller, World
from expect import ended
from faults import FAULTS, Fault
from own_engine import OwnEngine, own_engine
from stack import IMAGE_TAG, Stack, running

SEED = int(os.environ.get("CHAOS_SEED", "1"))
SECONDS = float(os.environ.get("CHAOS_SECONDS", "0"))
CALLERS = 2  # of each tenant
SESSIONS_MAX = 6
EXECUTIONS_MAX = 6
SETTINGS = {
    "SANDBOX_POOL_MIN": "2",
    "SANDBOX_POOL_MAX": "3",
    "SANDBOX_SESSIONS_MAX": str(SESSIONS_MAX),
    "SANDBOX_TENANT_EXECUTIONS_MAX": str(EXECUTIONS_MAX),
    "SANDBOX_DISK": "32m",
}

pytestmark = [pytest.mark.alone, pytest.mark.timeout(SECONDS + 600)]


@contextlib.contextmanager
def small_store(stack: Stack) -> Iterator[None]:
    """The store on a filesystem that can be filled without hurting anybody."""
    place = stack.dir / "state" / "store"
    kept = stack.dir / "store-before"
    subprocess.run(["cp", "-a", str(place), str(kept)], check=True, timeout=30)
    mount = ["mount", "-t", "tmpfs", "-o", "size=32m", "none", str(place)]
    subprocess.run(mount, check=True, timeout=30)
    try:
        subprocess.run(["cp", "-aT", str(kept), str(place)], check=True, timeout=30)
        yield
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True, timeout=30)


@contextlib.contextmanager
def under_load(world: World, keys: Sequence[str], seed: int) -> Iterator[None]:
    callers = [Caller(world, key, random.Random(f"{seed} {key}")) for key in keys for _ in range(CALLERS)]
    threads = [threading.Thread(target=caller.run) for caller in callers]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        world.over.set()
        for thread in threads:
            thread.join(200)
        if any(thread.is_alive() for thread in threads):
            world.blame("a caller hangs")


def torment(world: World, chance: random.Random, faults: Sequence[Fault], seconds: float) -> None:
    """Every fault at least once, in an order of chance; after each one nothing may be left behind."""
    until = time.monotonic() + seconds
    first = True
    while not world.wrong and (first or time.monotonic() < until):
        for fault in chance.sample(faults, len(faults)):
            if world.wrong or (not first and time.monotonic() > until):
                break
            began = time.monotonic()
            fault(world, chance)
            time.sleep(chance.uniform(0.2, 1.0))
            world.stack.wait_without_leaks()
            print(f"{fault.__name__.replace('_', ' ')}: {time.monotonic() - began:.1f} s")
        first = False


def counts_are_true(world: World, keys: Sequence[str]) -> None:
    """Each tenant, having closed everything, may have exactly as much as it could have at the beginning."""
    for key in keys:
        listed = world.stack.call("GET", "/v1/sessions", key).json()["sessions"]
        for session in listed:  # those that callers gave up, or whose opening nobody heard of
            world.stack.call("DELETE", f"/v1/sessions/{session['session_id']}", key)
    world.stack.wait_without_leaks()
    for key in keys:
        opened = [world.stack.call("POST", "/v1/sessions", key, json={}) for _ in range(SESSIONS_MAX + 1)]
        statuses = [answer.status_code for answer in opened]
        assert statuses == [201] * SESSIONS_MAX + [429], statuses
        sessions = [answer.json()["session_id"] for answer in opened[:-1]]
        path = f"/v1/sessions/{sessions[0]}/executions"
        body = {"command": ["sleep", "600"], "background": True, "timeout": 600}
        started = [world.stack.call("POST", path, key, json=body) for _ in range(EXECUTIONS_MAX + 1)]
        assert [answer.status_code for answer in started] == [201] * EXECUTIONS_MAX + [429]
        for session in sessions:
            assert world.stack.call("DELETE", f"/v1/sessions/{session}", key).status_code == 204


def test_whatever_dies_every_promise_is_kept() -> None:
    chance = random.Random(SEED)
    with running(small_store, **SETTINGS) as stack:
        keys = [stack.new_key("one"), stack.new_key("two")]
        world = World(stack)
        with under_load(world, keys, SEED):
            torment(world, chance, FAULTS, SECONDS)
        report = f"seed {SEED}: {dict(world.done)}, answers {dict(world.codes)}"
        print(report)
        assert world.wrong == [], f"{report}\n" + "\n".join(world.wrong)
        assert world.done["sessions"] and world.done["commands"]
        counts_are_true(world, keys)


def restart(engine: OwnEngine, world: World, number: signal.Signals, live_restore: bool) -> None:
    """Under load; afterwards nothing may be left behind."""
    began = time.monotonic()
    time.sleep(1)
    engine.stop(number)
    time.sleep(1)
    engine.start(live_restore)
    world.stack.wait_ready()
    time.sleep(1)
    world.stack.wait_without_leaks()
    print(f"{number.name}, live_restore={live_restore}: {time.monotonic() - began:.1f} s")


def test_a_restarted_engine_ends_sessions_only_without_live_restore_and_they_are_told() -> None:
    image = f"sandbox-server/default:{IMAGE_TAG}"
    with own_engine(image) as engine, running(SANDBOX_DOCKER_HOST=engine.host, **SETTINGS) as stack:
        keys = [stack.new_key("one"), stack.new_key("two")]
        world = World(stack)
        with under_load(world, keys, SEED):
            restart(engine, world, signal.SIGTERM, live_restore=True)
            restart(engine, world, signal.SIGKILL, live_restore=True)
            assert not world.done["sessions that ended early"]
            world.all_may_die = True
            restart(engine, world, signal.SIGTERM, live_restore=False)
            session = stack.call("POST", "/v1/sessions", json={}).json()["session_id"]
            restart(engine, world, signal.SIGTERM, live_restore=False)
        assert world.wrong == [], world.wrong
        assert world.done["sessions"]
        ended(stack.call("GET", f"/v1/sessions/{session}"), "engine_stopped")
        counts_are_true(world, keys)
