"""Workspaces: what outlives a session, what is shared with it, and how much of it there may be."""

from __future__ import annotations

import io
import tarfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote

import pytest
from expect import problem, refused
from plain import Open, open_in, opening
from stack import Stack, running

MIB = 1 << 20
FILL = "dd if=/dev/zero of=big bs=1M count={} status=none"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("datasets")
    (place / "sales").mkdir()
    (place / "sales" / "2025.csv").write_text("a,b\n1,2\n")
    (place / "words.txt").write_text("one two\n")
    (place / ".hidden").write_text("not for anybody")
    for path in (place, *place.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return place


@pytest.fixture(scope="module")
def server(data: Path) -> Iterator[Stack]:
    """Small disks, a warm pool, and datasets."""
    settings = {
        "SANDBOX_DISK": "64m",
        "SANDBOX_DISK_MAX": "128m",
        "SANDBOX_TENANT_DISK": "200m",
        "SANDBOX_DATASETS_DIR": str(data),
        "SANDBOX_POOL_MIN": "1",
        "SANDBOX_POOL_MAX": "1",
    }
    with running(**settings) as stack:
        yield stack
        for workspace in stack.call("GET", "/v1/workspaces").json()["workspaces"]:
            assert stack.call("DELETE", f"/v1/workspaces/{workspace['name']}").status_code == 204


@pytest.fixture
def opened(server: Stack) -> Iterator[Open]:
    with opening(server) as open_one:
        yield open_one


def test_a_workspace_with_a_name_outlives_its_session(server: Stack, opened: Open) -> None:
    """Warm and cold sandboxes alike; owner and modes are those that were left there."""
    first = opened(workspace="project")
    first.output("mkdir -m 700 sub; echo kept > sub/file; chmod 640 sub/file; ln -s sub/file link")
    first.output("head -c 5000000 /dev/zero > zeros")
    told = first.get().json()
    assert told["workspace"] == "project" and 5_000_000 <= told["disk_used"] < 6_000_000
    first.close()
    for size in ({}, {"memory": 256 * MIB}):
        again = opened(workspace="project", **size)
        assert (
            again.output("cat link; stat -c '%a %U' sub sub/file; id -un")
            == "kept\n700 user\n640 user\nuser\n"
        )
        assert again.output("echo more >> sub/file && tail -1 sub/file") == "more\n"
        again.output("head -1 sub/file > x && mv x sub/file && chmod 640 sub/file")
        again.close()
    told = server.call("GET", "/v1/workspaces/project").json()
    assert told["session_id"] is None and told["last_used_at"].endswith("Z") and told["size"] >= 5_000_000


def test_two_live_sessions_never_have_the_same_workspace(server: Stack, opened: Open) -> None:
    """However many ask at once, one gets it; it is free again when that one is closed."""
    answers: list[int] = []

    def ask() -> None:
        answer = server.call("POST", "/create_session", json={"workspace": "wanted"})
        answers.append(answer.status_code)
        if answer.status_code == 200:
            sessions.append(answer.json()["session_id"])

    sessions: list[str] = []
    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert sorted(answers) == [200, 409, 409, 409, 409, 409]
    refusal = server.call("POST", "/create_session", json={"workspace": "wanted"})
    assert problem(refusal, 409, "workspace_in_use")["workspace"] == "wanted"
    problem(server.call("DELETE", "/v1/workspaces/wanted"), 409, "workspace_in_use")
    assert server.call("DELETE", f"/v1/sessions/{sessions[0]}").status_code == 204
    opened(workspace="wanted")


def test_a_users_workspace_is_kept_on_request(server: Stack, opened: Open) -> None:
    opened(user_id="ada", persist=True).output("echo mine > notes")
    for session in server.call("GET", "/v1/sessions").json()["sessions"]:
        server.call("DELETE", f"/v1/sessions/{session['session_id']}")
    again = opened(user_id="ada", persist=True)
    assert (again.output("cat notes"), again.get().json()["workspace"]) == ("mine\n", "user:ada")
    again.close()
    assert opened(user_id="ada").output("ls") == ""
    refused(server.call("POST", "/create_session", json={"workspace": "user:ada"}), "workspace")
    refused(server.call("POST", "/create_session", json={"persist": True}), "body")


def test_a_workspace_is_listed_read_and_deleted_without_a_session(server: Stack, opened: Open) -> None:
    """Whoever looks does not hold up who works; no session of the caller's is to be seen."""
    session = opened(workspace="archive")
    session.output(
        "mkdir -p a/b; echo deep > a/b/file; head -c 100000 /dev/urandom > bytes; md5sum bytes > sum"
    )
    session.close()
    base = "/v1/workspaces/archive/files"
    listed = server.call("GET", f"{base}?path=.&depth=3").json()
    assert [entry["path"] for entry in listed["entries"]] == [
        f"/workspace/{name}" for name in ("a", "a/b", "a/b/file", "bytes", "sum")
    ]
    assert server.call("GET", f"{base}/content?path=a/b/file").content == b"deep\n"
    packed = server.call("GET", f"{base}/archive?path=.&format=tar").content
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        assert any(name.endswith("a/b/file") for name in archive.getnames())
    assert server.call("GET", "/v1/sessions").json()["sessions"] == []
    again = opened(workspace="archive")
    assert again.output("md5sum -c sum") == "bytes: OK\n"
    assert server.call("GET", f"{base}/stat?path=bytes").json()["size"] == 100000
    again.close()
    assert server.call("DELETE", "/v1/workspaces/archive").status_code == 204
    problem(server.call("GET", f"{base}?path=."), 404, "workspace_not_found")
    assert opened(workspace="archive").output("ls -A") == ""


def test_another_tenants_workspaces_do_not_exist(server: Stack, opened: Open) -> None:
    opened(workspace="secret").output("echo secret > s")
    other = server.new_key("other")
    for method, path in (
        ("GET", "/v1/workspaces/secret"),
        ("DELETE", "/v1/workspaces/secret"),
        ("GET", "/v1/workspaces/secret/files?path=."),
        ("GET", "/v1/workspaces/secret/files/content?path=s"),
    ):
        problem(server.call(method, path, key=other), 404, "workspace_not_found")
    assert server.call("GET", "/v1/workspaces", key=other).json() == {"workspaces": [], "next_cursor": None}
    answer = server.call("POST", "/create_session", key=other, json={"workspace": "secret"})
    session = answer.json()["session_id"]
    told = server.call("POST", f"/v1/sessions/{session}/execute", key=other, json={"command": "ls -A"})
    assert told.json()["output"] == ""
    server.call("DELETE", f"/v1/sessions/{session}", key=other)
    assert server.call("DELETE", "/v1/workspaces/secret", key=other).status_code == 204


def test_workspaces_are_listed_by_the_page_and_no_more_of_them_than_a_tenant_may_keep(server: Stack) -> None:
    key = server.new_key("keepers")
    server.ctl("tenant", "set", "keepers", "--limit=workspaces=3")
    for name in ("a", "b", "c"):
        answer = server.call("POST", "/create_session", key=key, json={"workspace": name})
        server.call("DELETE", f"/v1/sessions/{answer.json()['session_id']}", key=key)
    first = server.call("GET", "/v1/workspaces?limit=2", key=key).json()
    rest = server.call("GET", f"/v1/workspaces?limit=2&cursor={first['next_cursor']}", key=key).json()
    assert [one["name"] for one in first["workspaces"] + rest["workspaces"]] == ["a", "b", "c"]
    assert rest["next_cursor"] is None
    full = problem(
        server.call("POST", "/create_session", key=key, json={"workspace": "d"}), 429, "quota_exceeded"
    )
    assert (full["limit"], full["used"], full["allowed"]) == ("workspaces", 3, 3)
    told = server.call("GET", "/v1/limits", key=key).json()["limits"]["workspaces"]
    assert told == {"used": 3, "allowed": 3}
    for name in ("a", "b", "c"):
        assert server.call("DELETE", f"/v1/workspaces/{name}", key=key).status_code == 204


def test_datasets_are_read_below_data_and_by_those_who_asked(server: Stack, opened: Open) -> None:
    """Warm and cold alike; nobody can write there, and what was not asked for is not there."""
    offered = server.call("GET", "/v1/datasets").json()["datasets"]
    assert offered == [{"name": "sales", "size": None}, {"name": "words.txt", "size": 8}]
    for size in ({}, {"memory": 256 * MIB}):
        session = opened(datasets=["sales", "words.txt"], **size)
        assert session.output("cat /data/sales/2025.csv /data/words.txt") == "a,b\n1,2\none two\n"
        assert session.output("ls /data") == "sales\nwords.txt\n"
        tries = "touch /data/x /data/sales/x; echo x >> /data/words.txt; rm -rf /data/sales"
        assert session.execute(tries).json()["exit_code"] != 0
        assert session.output("cat /data/sales/2025.csv | wc -l") == "2\n"
        assert (
            server.call("GET", f"/v1/sessions/{session.id}/files/content?path=/data/words.txt").text
            == "one two\n"
        )
        session.close()
    assert opened().output("ls -A /data") == ""
    for wrong in ("nothing", "../etc", ".hidden", "0" * 32):
        refused(server.call("POST", "/create_session", json={"datasets": [wrong]}), "datasets")


def test_an_upload_can_be_a_dataset(server: Stack, opened: Open) -> None:
    files = {"file": ("numbers 1.csv", b"1,2,3\n")}
    told = server.call("POST", "/upload", files=files).json()["files"][0]
    sent, until = told["file_id"], told["expires_at"]
    session = opened(datasets=[sent])
    assert session.output("cat '/data/numbers 1.csv'") == "1,2,3\n"
    assert session.get().json()["datasets"] == [sent]
    assert server.call("GET", f"/v1/uploads/{sent}").json()["expires_at"] > until, "of use, so it stays"
    other = server.new_key("stranger")
    refused(server.call("POST", "/create_session", key=other, json={"datasets": [sent]}), "datasets")


def test_a_full_disk_is_told_and_deleting_makes_room(opened: Open) -> None:
    """EDQUOT at the limit; the result says so; others are untouched; usage is shown."""
    full, other = opened(), opened()
    result = full.execute("dd if=/dev/zero of=big bs=1M").json()
    assert "Disk quota exceeded" in result["stderr"]
    assert (result["exit_code"], result["disk_full"]) == (1, True)
    told = full.get().json()
    assert told["disk"] == 64 * MIB and 60 * MIB < told["disk_used"] <= 65 * MIB
    assert other.execute(FILL.format(40)).json()["exit_code"] == 0
    assert full.execute("rm big && " + FILL.format(50)).json()["disk_full"] is False
    assert full.output("stat -c %s big") == f"{50 * MIB}\n"


def test_empty_files_are_bounded_too(opened: Open) -> None:
    code = "import os\nfor i in range(10**7): os.close(os.open(f'{i:064}', os.O_CREAT))"
    session = opened(disk=2 * MIB)
    result = session.execute(["python3", "-c", code], timeout=60).json()
    assert "Disk quota exceeded" in result["stderr"] and result["disk_full"]
    assert session.execute("find . -type f -delete", timeout=60).json()["exit_code"] == 0
    assert session.output("echo room > again && cat again") == "room\n"


def test_a_session_may_ask_for_more_or_less_disk_within_bounds(server: Stack, opened: Open) -> None:
    assert opened(disk=128 * MIB).execute(FILL.format(100)).json()["exit_code"] == 0
    assert opened(disk=16 * MIB).execute(FILL.format(17)).json()["disk_full"] is True
    for wrong in (1, 129 * MIB, "1g"):
        refused(server.call("POST", "/create_session", json={"disk": wrong}), "disk")


def test_many_look_into_a_workspace_at_once(server: Stack, opened: Open) -> None:
    """None of them ends another's look, nor is refused for it."""
    session = opened(workspace="looked-at")
    session.output("echo seen > file")
    session.close()
    with ThreadPoolExecutor(6) as pool:
        path = "/v1/workspaces/looked-at/files/content?path=file"
        answers = list(pool.map(lambda _: server.call("GET", path), range(6)))
    assert [(answer.status_code, answer.text) for answer in answers] == [(200, "seen\n")] * 6


def test_a_users_workspace_can_be_reached_whatever_the_user_is_called(server: Stack, opened: Open) -> None:
    """Also if it looks like the way to what is in somebody else's."""
    for user in ("a/d a@x.org", "x", "x/files", "x/files/content", "x%2Ffiles"):
        session = opened(user_id=user, persist=True)
        session.output(f"echo '{user}' > file")
        name = session.get().json()["workspace"]
        session.close()
        path = f"/v1/workspaces/{quote(name, safe='')}"
        assert server.call("GET", path).json()["name"] == name
        assert server.call("GET", f"{path}/files/content?path=file").text == f"{user}\n"
    for one in server.call("GET", "/v1/workspaces").json()["workspaces"]:
        server.call("DELETE", f"/v1/workspaces/{quote(one['name'], safe='')}")


def test_an_upload_that_is_read_as_a_dataset_stays_and_counts(server: Stack, opened: Open) -> None:
    """Deleted meanwhile: nobody finds it any more, its reader has it still, also after going back."""
    sent = server.call("POST", "/upload", files={"f": ("kept.txt", b"kept")}).json()["files"][0]["file_id"]
    session = opened(datasets=[sent])
    taken = server.call("POST", f"/v1/sessions/{session.id}/snapshots").json()["snapshot_id"]
    assert server.call("DELETE", f"/v1/uploads/{sent}").status_code == 204
    problem(server.call("GET", f"/v1/uploads/{sent}"), 404, "upload_not_found")
    refused(server.call("POST", "/create_session", json={"datasets": [sent]}), "datasets")
    body = {"snapshot_id": taken}
    assert server.call("POST", f"/v1/sessions/{session.id}/restore", json=body).status_code == 200
    assert session.output("cat /data/kept.txt") == "kept"
    assert server.call("DELETE", f"/v1/snapshots/{taken}").status_code == 204


def test_a_link_among_the_uploads_is_not_mounted(server: Stack) -> None:
    """Whoever has taken over the web's process could plant one: the keeper mounts plain files alone."""
    sent = server.call("POST", "/upload", files={"f": ("root", b"x")}).json()["files"][0]["file_id"]
    path = server.dir / "state" / "uploads" / sent
    path.unlink()
    path.symlink_to("/")
    refused(server.call("POST", "/create_session", json={"datasets": [sent]}), "datasets")
    path.unlink()


def test_one_session_cannot_fill_the_storage_for_others() -> None:
    """However much it asks for: a tenant gets half of it at most, and what is promised has a bound."""
    settings = {"SANDBOX_STORAGE_SIZE": "1g", "SANDBOX_DISK_OVERCOMMIT": "3"}
    with running(**settings) as stack:
        other = stack.new_key("other")
        greedy = open_in(stack, disk=2 << 30)
        result = greedy.execute("head -c 2G /dev/zero > big; stat -c %s big", timeout=60).json()
        assert result["disk_full"] and int(result["stdout"]) <= 600 << 20
        bystander = stack.call("POST", "/create_session", key=other).json()["session_id"]
        body = {"session_id": bystander, "command": "head -c 5M /dev/zero > mine && stat -c %s mine"}
        assert stack.call("POST", "/execute", key=other, json=body).json()["stdout"] == f"{5 * MIB}\n"
        refusal = stack.call("POST", "/create_session", key=other, json={"disk": 1 << 30})
        assert int(refusal.headers["Retry-After"]) > 0
        problem(refusal, 503, "storage_full")
        stack.call("DELETE", f"/v1/sessions/{bystander}", key=other)
        greedy.close()


def test_what_a_session_left_is_never_seen_by_the_next(opened: Open) -> None:
    """A102: neither in the workspace nor in the space it used."""
    first = opened()
    first.output("echo secret-of-the-first > s; head -c 1000000 /dev/zero | tr '\\0' S > big; sync")
    first.close()
    for _ in range(3):
        nxt = opened()
        assert nxt.output("ls -A; truncate -s 1M holes; tr -d '\\0' < holes | wc -c") == "0\n"
        nxt.close()


def test_a_keeper_never_takes_another_storage_for_the_one_it_had() -> None:
    """Its volumes are not there after a reboot, say: it does not begin with none, and sweeps nothing."""
    with running() as stack:
        session = open_in(stack, workspace="kept")
        session.output("echo precious > file")
        session.close()
        state = stack.dir / "state"
        assert (state / "volumes").stat().st_mode & 0o077 == 0
        stack.kill("keeper", 15)
        stack.ctl("unmount")
        image = (state / "volumes.btrfs").rename(stack.dir / "elsewhere")
        stack.start_keeper()
        assert stack.processes["keeper"].wait(timeout=30) != 0
        assert "workspaces of this installation are on a btrfs" in stack.log("keeper")
        image.rename(state / "volumes.btrfs")
        stack.start_keeper()
        stack.wait_ready()
        assert server_has(stack, "kept") == "precious\n"
        assert stack.call("DELETE", "/v1/workspaces/kept").status_code == 204


def server_has(stack: Stack, workspace: str) -> str:
    answer = stack.call("GET", f"/v1/workspaces/{workspace}/files/content?path=file")
    deadline = time.monotonic() + 20
    while answer.status_code == 503 and time.monotonic() < deadline:  # the keeper is still starting
        time.sleep(0.1)
        answer = stack.call("GET", f"/v1/workspaces/{workspace}/files/content?path=file")
    return answer.text


def test_limits_that_are_not_hard_are_said_loudly_and_kept_softly() -> None:
    """Where there is no btrfs: /readyz is degraded, writers are stopped, names, snapshots and forks work."""
    with running(SANDBOX_STORAGE="directory", SANDBOX_DISK="32m") as stack:
        ready = stack.call("GET", "/readyz").json()
        assert ready["status"] == "degraded" and "soft" in ready["storage"]
        session = open_in(stack, workspace="plain")
        session.output("echo one > file; mkdir d; cd d")
        taken = stack.call("POST", f"/v1/sessions/{session.id}/snapshots").json()
        session.output("echo two > ../file")
        restore = {"snapshot_id": taken["snapshot_id"]}
        assert stack.call("POST", f"/v1/sessions/{session.id}/restore", json=restore).status_code == 200
        assert session.output("cat ../file; pwd") == "one\n/workspace/d\n"
        result = session.execute(
            "while :; do cat /dev/zero | head -c 1000000 >> big; sleep 0.01; done", timeout=60
        )
        assert result.json()["disk_full"] is True and result.json()["timed_out"] is False
        session.output("rm -f big /workspace/d/big")
        session.close()
        again = open_in(stack, workspace="plain")
        assert again.output("cat file") == "one\n"
        again.close()
        assert stack.call("DELETE", "/v1/workspaces/plain").status_code == 204
        assert stack.call("DELETE", f"/v1/snapshots/{taken['snapshot_id']}").status_code == 204
