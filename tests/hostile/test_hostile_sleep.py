"""Attacks on sleep: what must not hold up others, be done by others, or come back stronger than it was."""

from __future__ import annotations

import pytest
from expect import problem
from invariants import Neighbour, Session, Tenant
from stack import Stack, docker


def put_to_sleep(session: Session, cold: bool = False) -> None:
    answer = session.tenant.call("POST", f"/v1/sessions/{session.id}/pause", json={"cold": cold}, timeout=90)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("cold", [False, True])
def test_sixty_busy_processes_are_put_to_sleep(session: Session, neighbour: Neighbour, cold: bool) -> None:
    session.run(
        "for i in $(seq 50); do (trap '' TERM INT HUP; while :; do :; done) & done; sleep 1", timeout=20
    )
    put_to_sleep(session, cold)
    if not cold:
        name = session.container
        assert docker("stats", "--no-stream", "--format", "{{.CPUPerc}}", name).strip() == "0.00%"
    neighbour.check()
    session.is_usable()
    left = int(session.run("pgrep -c bash; true", timeout=20)["stdout"])
    assert (left < 10) if cold else (left > 50)


@pytest.mark.parametrize("cold", [False, True])
def test_a_fork_bomb_is_put_to_sleep_and_woken(session: Session, neighbour: Neighbour, cold: bool) -> None:
    session.execute("bomb() { bomb | bomb & sleep 0.01; }; (bomb) >/dev/null 2>&1 &", timeout=5)
    put_to_sleep(session, cold)
    neighbour.check()
    assert session.run("echo awake", timeout=20)["stdout"] == "awake\n"


@pytest.mark.parametrize(
    "state",
    [
        "export() { sleep 600; }; builtin() { sleep 600; }; alias export='sleep 600'",
        "trap 'sleep 600' DEBUG",
        "export BIG=$(head -c 100000 /dev/zero | tr '\\0' x)",
        """export EVIL="'; touch /workspace/ran; '$(printf '\\n\\001') "'$(touch /workspace/ran)'""",
        "mkdir -p deep/x; cd deep/x; rmdir /workspace/deep/x",
        "exec 1>&- 2>&-; set -eu; readonly HOME PATH; cd /tmp",
    ],
)
def test_a_hostile_shell_goes_cold_and_comes_back_usable(
    session: Session, neighbour: Neighbour, state: str
) -> None:
    """What its shell was like is told to a shell of the same user; nobody else acts on a word of it."""
    session.execute(state, timeout=3)
    put_to_sleep(session, cold=True)
    neighbour.check()
    assert session.execute("true", timeout=5).status_code == 200
    assert session.beside("ls /workspace", timeout=5)["stdout"].split() in ([], ["deep"])
    session.is_usable()


def test_a_full_disk_does_not_keep_a_session_from_sleeping(session: Session) -> None:
    session.run("head -c 200M /dev/zero > fill; cd /tmp; true", timeout=30)
    put_to_sleep(session, cold=True)
    assert session.run("stat -c %s /workspace/fill", timeout=20)["exit_code"] == 0
    session.run("rm /workspace/fill")
    session.is_usable()


def test_another_tenant_can_neither_pause_nor_resume_nor_see(session: Session, stack: Stack) -> None:
    other = Tenant(stack, stack.new_key("stranger"))
    put_to_sleep(session)
    for verb in ("pause", "resume"):
        for id_ in (session.id, "0" * 32):
            answer = other.call("POST", f"/v1/sessions/{id_}/{verb}", json={})
            problem(answer, 404, "session_not_found")
    problem(
        other.call("POST", f"/v1/sessions/{session.id}/pause", json={"cold": True}), 404, "session_not_found"
    )
    assert session.get().json()["state"] == "paused"


def test_what_is_in_a_sleeping_sandbox_does_not_reach_its_next_one(session: Session) -> None:
    """Only the workspace comes back: /tmp and processes are of the sandbox, which is used once."""
    session.run("echo left > /tmp/left; nohup sleep 600 >/dev/null 2>&1 &")
    before = session.container
    put_to_sleep(session, cold=True)
    assert session.run("ls /tmp; pgrep -c sleep", timeout=10)["stdout"] == "0\n"
    assert session.container != before
