"""`sandbox cp` and the other commands about files, against a server that keeps files in memory."""

import io
import json
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pexpect
import pytest
from sandbox_client.cli.places import Place, place
from sandbox_client.cli.progress import Bar
from sdk_shelf import Shelf
from sdk_wire import KEY, SESSION, problem

CLIENT = Path(__file__).resolve().parents[3] / "client"
PROGRAM = [sys.executable, "-m", "sandbox_client.cli"]
TAKEN = {"snapshot_id": "n1", "session_id": "s1", "name": "good", "kind": "snapshot", "size": 2048}


@pytest.fixture
def shelf():
    server = Shelf()
    yield server
    server.stop()


@pytest.fixture
def environment(shelf):
    plain = {name: value for name, value in os.environ.items() if not name.startswith("SANDBOX_")}
    own = {"PYTHONPATH": str(CLIENT), "SANDBOX_URL": shelf.url, "SANDBOX_API_KEY": KEY, "TERM": "xterm"}
    return {**plain, **own}


@pytest.fixture
def sandbox(environment, tmp_path):
    def call(*args, **options):
        options = {"stdin": subprocess.DEVNULL, "env": environment, "timeout": 30, "cwd": tmp_path, **options}
        return subprocess.run([*PROGRAM, *map(str, args)], capture_output=True, **options)

    return call


def names(archive):
    with tarfile.open(fileobj=io.BytesIO(archive)) as found:
        return found.getnames()


def archive_of(**files):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        link = tarfile.TarInfo("sly\x1b")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    return out.getvalue()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("s1:a/b", Place("s1", "a/b")),
        (":a", Place("", "a")),
        ("s1:", Place("s1", ".")),
        ("s1:/tmp/x:y", Place("s1", "/tmp/x:y")),
        ("./a:b", None),
        ("a/b", None),
        ("-", None),
    ],
)
def test_a_place_is_told_from_a_path_here(text, found):
    assert place(text) == found


def test_files_are_copied_both_ways(shelf, sandbox, tmp_path):
    (tmp_path / "a.txt").write_bytes(b"data")
    shelf.files[b"d/x"] = b""
    assert sandbox("cp", "a.txt", "s1:b.txt").returncode == 0
    assert sandbox("cp", "-q", "a.txt", "s1:d").returncode == 0
    assert shelf.files == {b"d/x": b"", b"b.txt": b"data", b"d/a.txt": b"data"}
    done = sandbox("cp", "s1:b.txt", ".")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert sandbox("cp", "s1:b.txt", "other").returncode == 0
    assert (tmp_path / "b.txt").read_bytes() == (tmp_path / "other").read_bytes() == b"data"


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ("project", "s1:new", b"new"),
        ("project", "s1:there", b"there/project"),
        ("project/", "s1:there", b"there/project"),
        ("project/.", "s1:there", b"there"),
        ("project", "s1:", b"project"),
    ],
)
def test_a_directory_goes_where_docker_cp_puts_it(shelf, sandbox, tmp_path, source, target, expected):
    shelf.files[b"there/x"] = b""
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "a").write_text("a")
    done = sandbox("cp", source, target)
    assert done.returncode == 0 and b"left out" in done.stderr
    assert shelf.asked("PUT", "files/archive")[0].path == expected and names(shelf.archive) == ["a"]


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ("s1:r", "new", "new"),
        ("s1:r", "there", "there/r"),
        ("s1:r/.", "there", "there"),
        ("s1:", "there", "there"),
    ],
)
def test_a_directory_comes_where_docker_cp_puts_it(shelf, sandbox, tmp_path, source, target, expected):
    shelf.files.update({b"r/x": b"", b"r/./x": b""})
    shelf.archive = archive_of(a=b"A")
    (tmp_path / "there").mkdir()
    done = sandbox("cp", source, target)
    assert done.returncode == 0 and (tmp_path / expected / "a").read_bytes() == b"A"
    assert b"left out" in done.stderr and b"\x1b" not in done.stderr


def test_a_dash_is_stdin_or_stdout(shelf, sandbox):
    assert sandbox("cp", "-", "s1:x", stdin=None, input=b"in\xff").returncode == 0
    assert shelf.files[b"x"] == b"in\xff"
    assert sandbox("cp", "s1:x", "-").stdout == b"in\xff"


def test_the_session_may_be_left_out_where_there_is_one(shelf, sandbox, tmp_path):
    shelf.files[b"x"] = b"data"
    shelf.script["/v1/sessions"] = [(200, {"sessions": [SESSION]}), (200, {"sessions": [SESSION] * 2})]
    assert sandbox("cp", ":x", "y").returncode == 0
    done = sandbox("cp", ":x", "y")
    assert (done.returncode, done.stderr) == (
        1,
        b"sandbox: 2 sessions are open: say which, as in SESSION:PATH.\n",
    )


@pytest.mark.parametrize("args", [("a", "b"), ("s1:a", "s2:b"), ("s1:a",)])
def test_wrong_usage_is_2(shelf, sandbox, args):
    assert sandbox("cp", *args).returncode == 2 and shelf.sent == []


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("cp", "nothing", "s1:x"), b"nothing"),
        (("cp", "s1:nothing", "x"), b"sandbox: nothing: about not_found\n"),
        (("cp", "s1:x", "/proc/nowhere/x"), b"nowhere"),
        (("files", "cat", "s1:nothing"), b"sandbox: nothing: about not_found\n"),
        (("snapshot", "s1"), b"about storage_unsupported"),
    ],
)
def test_a_problem_is_one_line(shelf, sandbox, args, words):
    shelf.files[b"x"] = b"data"
    shelf.script["snapshots"] = [(501, problem("storage_unsupported", 501).body)]
    done = sandbox(*args)
    assert done.returncode == 1 and words in done.stderr and done.stderr.count(b"\n") == 1


def test_a_bar_is_drawn_on_a_terminal_only(shelf, environment, tmp_path):
    (tmp_path / "big.bin").write_bytes(bytes(3 << 20))
    words = [*PROGRAM[1:], "cp", "big.bin", "s1:x"]
    said, code = pexpect.run(
        f"{PROGRAM[0]} {' '.join(words)}", env=environment, cwd=str(tmp_path), withexitstatus=True, timeout=30
    )
    assert code == 0 and re.search(rb"big\.bin  \[#{24}\] 100%  3M/3M  [\d.]+\wB?/s\r\n$", said), said
    quiet = pexpect.run(
        f"{PROGRAM[0]} {' '.join([*words, '-q'])}", env=environment, cwd=str(tmp_path), timeout=30
    )
    assert quiet == b""


def test_a_bar_tells_how_much_how_fast_and_how_long():
    bar = Bar("a\x1bb", io.StringIO(), clock=lambda: 0.0)
    assert bar.line(3 << 20, 12 << 20, 1.5) == "a b  [######------------------]  25%  3M/12M  2M/s  4s left"
    assert bar.line(2048, None, 1.0) == "a b  2K  2K/s"
    assert bar.line(0, 0, 0.0).endswith("100%  0B/0B  0B/s")


def test_files_are_listed_printed_and_removed(shelf, sandbox):
    shelf.files = {b"a\xff\x1b[31m": b"x" * 2048, b"b": b"b"}
    table = sandbox("files", "ls", "s1:").stdout.decode().splitlines()
    assert table[0].split() == ["MODE", "SIZE", "MODIFIED", "PATH"] and table[1].split()[:2] == ["0640", "2K"]
    assert "\x1b" not in table[1]
    assert json.loads(sandbox("files", "ls", "--json", "s1:").stdout)[1]["name"] == "b"
    assert sandbox("files", "cat", "s1:b").stdout == b"b"
    assert sandbox("files", "rm", "-r", "s1:b").returncode == 0
    assert shelf.asked("DELETE", "files")[0].query == {"path": "b", "recursive": "true"}
    for args in (("cat",), ("ls",), ("ls", "b"), ("rm", "--json", "s1:b"), ("fly", "s1:b")):
        assert sandbox("files", *args).returncode == 2
    shelf.script["files"] = [(409, problem("not_a_directory", 409, path="b").body)]
    assert sandbox("files", "ls", "s1:b").stdout.split()[-1] == b"b"


def test_snapshots_forks_and_workspaces(shelf, sandbox):
    kept = {"name": "ada", "size": 9, "created_at": "2030-01-01T00:00:00Z", "session_id": None}
    shelf.script = {
        "snapshots": [(201, TAKEN), (200, {"snapshots": [TAKEN]})],
        "/v1/snapshots": [(200, {"snapshots": [TAKEN]})] * 2,
        "undo": [(200, {"session": SESSION, "undone": "e7", "snapshot_id": "n2"})],
        "fork": [(201, {"sessions": [{**SESSION, "session_id": "f1"}, {**SESSION, "session_id": "f2"}]})],
        "/v1/workspaces": [(200, {"workspaces": [kept]})] * 2,
    }
    assert sandbox("snapshot", "s1", "--name", "good").stdout == b"n1\n"
    assert sandbox("snapshots", "s1", "-q").stdout == b"n1\n"
    assert sandbox("snapshots").stdout.split()[-6:-2] == [b"s1", b"good", b"snapshot", b"2K"]
    assert json.loads(sandbox("snapshots", "--json").stdout)[0]["snapshot_id"] == "n1"
    assert sandbox("restore", "s1", "n1").returncode == 0
    assert sandbox("undo", "s1").stdout == b"e7\n"
    assert sandbox("fork", "-n", "2", "s1").stdout == b"f1\nf2\n"
    assert sandbox("workspaces").stdout.splitlines()[1].startswith(b"ada")
    assert sandbox("workspaces", "-q").stdout == b"ada\n"
    sandbox("workspaces", "--delete", "ada")
    sandbox("snapshots", "--delete", "n1")
    ended = [one.route for one in shelf.sent if one.method == "DELETE"]
    assert ended == ["/v1/workspaces/ada", "/v1/snapshots/n1"], "forks stay"


def test_a_fresh_session_has_files_and_places_as_wished(shelf, sandbox, tmp_path):
    (tmp_path / "a.csv").write_text("1")
    shelf.script["/upload"] = [(201, {"files": [{"file_id": "f" * 32}]})]
    options = "--workspace ada --snapshot n1 --checkpoint --dataset sales --dataset x --disk 1g --file a.csv"
    shelf.script["executions"] = [(503, problem("guest_unavailable", 503).body)]
    assert sandbox("run", *options.split(), "true").returncode == 125
    [created] = [one for one in shelf.sent if one.route == "/v1/sessions"]
    assert created.json == {
        "workspace": "ada",
        "snapshot": "n1",
        "checkpoint": True,
        "datasets": ["sales", "x"],
        "disk": 2**30,
        "files": ["f" * 32],
    }
    assert sandbox("run", "--file", "no.csv", "true").returncode == 2
    assert sandbox("run", "--session", "s1", "--dataset", "x", "true").returncode == 2
