"""Closing removes what the session had to itself, at once, whatever else there is on the host."""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from expect import eventually
from plain import open_in
from stack import Stack, running


@pytest.fixture(scope="module")
def own() -> Iterator[Stack]:
    """Its next sweep is a minute away: what goes before that goes with its session."""
    with running() as stack:
        yield stack


@pytest.fixture
def orphan(own: Stack) -> Iterator[Path]:
    """A volume of nobody's."""
    place = own.dir / "state" / "volumes" / secrets.token_hex(16)
    subprocess.run(["btrfs", "subvolume", "create", str(place)], check=True, capture_output=True, timeout=30)
    yield place
    subprocess.run(["btrfs", "subvolume", "delete", str(place)], check=True, capture_output=True, timeout=30)


@pytest.fixture
def stuck(own: Stack) -> Iterator[Path]:
    """A volume of nobody's that cannot be removed: it is none."""
    place = own.dir / "state" / "volumes" / secrets.token_hex(16)
    place.mkdir()
    yield place
    place.rmdir()


def test_a_volume_that_cannot_be_removed_costs_no_uid_and_fails_no_close(own: Stack, stuck: Path) -> None:
    uids = set()
    for _ in range(3):
        session = open_in(own)
        uids.add(session.output("id -u"))
        assert session.close().status_code == 204
        eventually(lambda: not own.directories(), 10)
        eventually(lambda: os.listdir(own.dir / "state" / "volumes") == [stuck.name], 10)
    assert len(uids) == 1, "each was given back"


def test_what_others_left_is_not_looked_for(own: Stack, orphan: Path) -> None:
    """However many volumes there are on the host, closing costs the same."""
    session = open_in(own)
    session.close()
    eventually(lambda: own.volumes() == [orphan.name], 10)


def test_checkpoints_go_with_their_session_and_snapshots_stay(own: Stack) -> None:
    session = open_in(own, checkpoint=True)
    for number in range(3):
        session.output(f"echo {number} > file")
    kept = own.call("POST", f"/v1/sessions/{session.id}/snapshots", json={})
    assert kept.status_code in (200, 201), kept.text
    restored = own.call(
        "POST", f"/v1/sessions/{session.id}/restore", json={"snapshot_id": kept.json()["snapshot_id"]}
    )
    assert restored.status_code == 200, restored.text
    session.output("echo more > file")
    assert len(os.listdir(own.dir / "state" / "volumes")) >= 5
    session.close()
    eventually(lambda: os.listdir(own.dir / "state" / "volumes") == [kept.json()["snapshot_id"]], 10)
    own.call("DELETE", f"/v1/snapshots/{kept.json()['snapshot_id']}")
    eventually(lambda: os.listdir(own.dir / "state" / "volumes") == [], 10)
