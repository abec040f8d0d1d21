"""A reboot with live sessions: what docs/operations.md says is kept is there, and nothing else is left."""

from __future__ import annotations

import pytest
from expect import ended

from tests.engine.plain import Session, open_in
from tests.hosts.record import observe, record
from tests.hosts.vm.installed import Installed

Sessions = dict[str, Session]


def ask(session: Session, verb: str, **body: object) -> None:
    answer = session.stack.call("POST", f"/v1/sessions/{session.id}/{verb}", json=body)
    assert answer.ok, answer.text


@pytest.fixture(scope="module")
def sessions(deployed: Installed) -> Sessions:
    """One of each kind, from before the reboot."""
    made = {
        "running": open_in(deployed),
        "a user's": open_in(deployed, user_id="ada"),
        "paused": open_in(deployed),
        "cold": open_in(deployed),
        "with a workspace": open_in(deployed, workspace="project"),
    }
    for session in made.values():
        session.output("cd /tmp; export kept=yes; echo precious >/workspace/mine")
    ask(made["paused"], "pause")
    ask(made["cold"], "pause", cold=True)
    snapshot = deployed.call("POST", f"/v1/sessions/{made['running'].id}/snapshots", json={})
    made["from a snapshot"] = Session(deployed, snapshot.json()["snapshot_id"], {})
    deployed.machine.reboot()
    return made


def test_the_server_comes_back_by_itself(deployed: Installed, sessions: Sessions) -> None:
    deployed.wait_ready()
    ready = deployed.call("GET", "/readyz").json()
    assert (ready["status"], ready["wall"], ready["storage"]) == ("ready", {}, None)
    assert deployed.machine.run("systemctl --failed --no-legend") == ""


@pytest.mark.parametrize("kind", ["running", "a user's", "paused", "with a workspace"])
def test_sessions_with_a_sandbox_have_ended_and_say_so(
    deployed: Installed, sessions: Sessions, kind: str
) -> None:
    ended(sessions[kind].execute("true"), "engine_stopped")


def test_cold_sessions_wake_as_they_were(sessions: Sessions) -> None:
    told = sessions["cold"].output("echo $kept in $PWD; cat /workspace/mine")
    assert told == "yes in /tmp\nprecious\n"


def test_workspaces_and_snapshots_are_there(deployed: Installed, sessions: Sessions) -> None:
    for wish in ({"workspace": "project"}, {"snapshot": sessions["from a snapshot"].id}):
        session = open_in(deployed, **wish)
        assert session.output("cat /workspace/mine") == "precious\n"
        session.close()


def test_nothing_else_is_left(deployed: Installed, sessions: Sessions) -> None:
    deployed.close_sessions()
    deployed.wait_without_leaks()
    assert deployed.docker("ps", "--all", "--quiet", "--filter", "status=exited") == ""
    record("vm", observe(deployed.machine.run))
