"""Nothing is ever left behind: what belongs to nobody is told, kind by kind, and removed unasked."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import socket
import sqlite3
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from expect import problem
from plain import open_in
from stack import IMAGE_TAG, Stack, docker, running

KINDS = {
    "containers",
    "directories",
    "mounts",
    "sockets",
    "processes",
    "rows",
    "volumes",
    "uploads",
    "devices",
}


@pytest.fixture(scope="module")
def own() -> Iterator[Stack]:
    with running() as stack:
        yield stack


def run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=30).stdout.strip()


@contextlib.contextmanager
def planted(stack: Stack, name: str) -> Iterator[None]:
    """One of each kind, as crashes of the engine, the kernel and ours might leave them."""
    state = stack.dir / "state"
    place = state / "sandboxes" / name / "run"
    with contextlib.ExitStack() as things:
        labels = {"instance": stack.instance, "sandbox": name, "uid": "24001"}
        flags = [
            flag for key, value in labels.items() for flag in ("--label", f"sandbox-server.{key}={value}")
        ]
        docker("create", "--name", f"sandbox-{name}", *flags, f"sandbox-server/default:{IMAGE_TAG}")
        things.callback(
            lambda: subprocess.run(["docker", "rm", "-f", f"sandbox-{name}"], capture_output=True, timeout=60)
        )
        run("btrfs", "subvolume", "create", str(state / "volumes" / name))
        (state / "uploads" / name).touch()
        device = run("losetup", "--read-only", "--find", "--show", str(state / "volumes.btrfs"))
        things.callback(run, "losetup", "--detach", device)
        with contextlib.closing(sqlite3.connect(state / "store" / "store.db")) as store, store:
            row = (secrets.token_hex(16), name, time.time() - 3600)
            store.execute(
                "INSERT INTO snapshots VALUES (?, 'default', ?, NULL, 'snapshot', NULL, 'making', 0, ?)", row
            )
        place.mkdir(parents=True)
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(place / "guest.sock"))
        run("mount", "--bind", str(place), str(place))
        things.enter_context(inhabitant(place))
        yield


@contextlib.contextmanager
def inhabitant(place: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that lives in a sandbox which the engine has forgotten."""
    script = (
        f"mount -t tmpfs none /run; mkdir /run/sandbox; mount --bind {place} /run/sandbox; echo; sleep 600"
    )
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None and process.stdout.readline() == b"\n"
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def restart_keeper(stack: Stack) -> None:
    stack.kill("keeper", signal.SIGTERM)
    stack.start_keeper()
    stack.wait_ready()


def test_at_rest_and_with_sessions_nothing_belongs_to_nobody(own: Stack) -> None:
    session = open_in(own)
    told = own.call("GET", "/v1/admin/leaks", own.admin_key).json()
    assert told == {"total": 0, "counts": dict.fromkeys(told["counts"], 0), "found": {}}
    assert told["counts"].keys() == KINDS
    session.close()
    own.wait_without_leaks()


def test_only_the_operator_is_told(own: Stack) -> None:
    problem(own.call("GET", "/v1/admin/leaks"), 403, "scope_missing")


def test_each_kind_is_told_and_left_alone_by_the_count(own: Stack) -> None:
    restart_keeper(own)  # its next sweep is a minute away
    name = secrets.token_hex(16)
    with planted(own, name):
        told = own.call("GET", "/v1/admin/leaks", own.admin_key).json()
        assert told["counts"] == dict.fromkeys(KINDS, 1), told
        assert told["total"] == len(KINDS)
        assert f"sandbox-{name}" in docker("ps", "-a", "--format", "{{.Names}}").split()
        assert (own.dir / "state" / "volumes" / name).exists() and (
            own.dir / "state" / "uploads" / name
        ).exists()
    restart_keeper(own)
    own.wait_without_leaks()


def leaks_metric(stack: Stack) -> dict[str, float]:
    """As Prometheus reads it, by kind."""
    text = stack.call("GET", "/metrics", stack.admin_key).text
    found = re.findall(r'^sandbox_leaks\{kind="(\w+)"\} (\S+)$', text, re.MULTILINE)
    assert {kind for kind, _ in found} == KINDS, text[:2000]
    return {kind: float(number) for kind, number in found}


def test_what_lives_in_a_sandbox_that_everybody_has_forgotten_is_ended(own: Stack) -> None:
    """No container, directory or row is left that could lead to it."""
    place = own.dir / "state" / "sandboxes" / secrets.token_hex(16) / "run"
    place.mkdir(parents=True)
    with inhabitant(place) as process:
        place.rmdir()
        place.parent.rmdir()
        assert own.leaks() == {"processes": [place.parent.name]}
        restart_keeper(own)  # which reconciles before it answers
        assert process.wait(10) == -signal.SIGKILL
    assert own.leaks() == {}


def test_a_mount_over_a_sessions_files_and_a_stray_device_are_removed(own: Stack, tmp_path: Path) -> None:
    session = open_in(own)
    session.output("echo mine > file")
    place = own.dir / "state" / "sandboxes" / session.container.removeprefix("sandbox-") / "workspace"
    run("mount", "--bind", str(tmp_path), str(place))
    device = run("losetup", "--read-only", "--find", "--show", str(own.dir / "state" / "volumes.btrfs"))
    assert own.leaks() == {"mounts": [f"{place.parent.name}/workspace"], "devices": [device]}
    restart_keeper(own)
    assert own.leaks() == {}
    assert device not in run("losetup", "--associated", str(own.dir / "state" / "volumes.btrfs"))
    assert session.output("cat /workspace/file") == "mine\n"
    session.close()


def test_the_metric_tells_of_what_is_there_and_of_its_going(own: Stack) -> None:
    restart_keeper(own)
    assert sum(leaks_metric(own).values()) == 0
    (own.dir / "state" / "uploads" / secrets.token_hex(16)).touch()  # until the sweep, a minute away
    own.leaks()
    assert {kind for kind, number in leaks_metric(own).items() if number} == {"uploads"}
    restart_keeper(own)
    assert sum(leaks_metric(own).values()) == 0


def test_a_cold_session_takes_its_checkpoints_along(own: Stack) -> None:
    session = open_in(own, checkpoint=True)
    for number in range(3):
        session.output(f"echo {number} > file")
    paused = own.call("POST", f"/v1/sessions/{session.id}/pause", json={"cold": True})
    assert paused.status_code == 200
    session.close()
    assert own.leaks() == {}


def test_a_tenant_that_is_deleted_takes_everything_along(own: Stack) -> None:
    key = own.new_key("passing")
    for wish in ({"workspace": "kept"}, {"checkpoint": True}):
        session = own.call("POST", "/v1/sessions", key, json=wish).json()["session_id"]
        own.call("POST", f"/v1/sessions/{session}/execute", key, json={"command": "echo mine > file"})
        assert own.call("POST", f"/v1/sessions/{session}/snapshots", key, json={}).status_code == 201
    own.call("POST", f"/v1/sessions/{session}/pause", key, json={"cold": True})
    assert own.call("DELETE", "/v1/admin/tenants/passing", own.admin_key).status_code == 204
    assert own.leaks() == {}


def test_what_is_being_opened_and_closed_is_no_leak(own: Stack) -> None:
    over = threading.Event()

    def come_and_go() -> None:
        while not over.is_set():
            open_in(own).close()

    threads = [threading.Thread(target=come_and_go) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        assert [own.leaks() for _ in range(20)] == 20 * [{}]
    finally:
        over.set()
        for thread in threads:
            thread.join(60)


def test_what_a_dying_web_worker_left_is_removed_within_seconds(own: Stack) -> None:
    """It had ended the session, or reserved a place, and died before it asked the keeper for the rest."""
    session = open_in(own)
    with contextlib.closing(sqlite3.connect(own.dir / "state" / "store" / "store.db")) as store, store:
        store.execute(
            "UPDATE sessions SET state = 'ended', cause = 'closed', ended_at = 0 WHERE id = ?", (session.id,)
        )
        again = "UPDATE sessions SET id = ?, state = 'opening', created_at = ?, volume = NULL, sandbox = NULL"
        store.execute("CREATE TEMP TABLE reserved AS SELECT * FROM sessions WHERE id = ?", (session.id,))
        store.execute(again.replace("sessions", "reserved"), (secrets.token_hex(16), time.time() - 30))
        store.execute("INSERT INTO sessions SELECT * FROM reserved")
        late = "INSERT INTO detached (session, execution, tenant, until) VALUES (?, 'late', 'default', ?)"
        store.execute(late, (session.id, time.time() + 3600))
    deadline = time.monotonic() + 60
    while own.directories() or own.containers() or own.leaks():
        assert time.monotonic() < deadline, own.log("keeper")[-3000:]
        time.sleep(0.2)
