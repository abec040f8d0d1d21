"""Files, transfers, snapshots and forks through the SDK, both clients, on a real engine."""

from __future__ import annotations

import asyncio
import errno
import io
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from cutting_proxy import cutting
from sandbox_client import (
    AsyncSandboxClient,
    DiskFull,
    FileInfo,
    FileNotFound,
    InvalidPath,
    NothingToUndo,
    PreconditionFailed,
    SandboxClient,
    SnapshotNotFound,
    TextNotUnique,
    WorkspaceInUse,
)
from stack import Stack

ODD = b"caf\xe9 +%&\n.txt"
BIG = 24 << 20


@pytest.fixture(scope="module")
def sandbox(stack: Stack) -> Iterator[SandboxClient]:
    """One for all tests of this module, each in a directory of its own."""
    with stack.client(checkpoint=True) as one:
        yield one


def names(found: list[FileInfo]) -> list[str]:
    return [one.path.replace("/workspace/", "") for one in found]


def test_files_are_written_read_and_changed(sandbox: SandboxClient) -> None:
    files = sandbox.files
    first = files.write("v/notes.txt", "one two one\n", mode=0o600)
    assert sandbox.execute("stat -c '%a %U' v/notes.txt; cat v/notes.txt").stdout == "600 user\none two one\n"
    with pytest.raises(FileExistsError):
        files.write("v/notes.txt", "other", create_only=True)
    with pytest.raises(TextNotUnique) as caught:
        files.edit("v/notes.txt", "one", "1")
    assert caught.value.count == 2
    assert files.edit("v/notes.txt", "two", "2").replacements == 1
    with pytest.raises(PreconditionFailed):
        files.write("v/notes.txt", "mine", if_match=first)
    files.write("v/notes.txt", iter([b"by ", b"pieces"]), if_match=files.stat("v/notes.txt"))
    assert list(files.read_stream("v/notes.txt", start=3, end=6)) == [b"pie"]
    files.write(ODD, b"odd")
    assert files.read(ODD) == b"odd" and ODD.decode(errors="surrogateescape") in names(files.list())
    files.move(ODD, "v/plain")
    files.copy("v", "w")
    assert names(files.list("w", depth=2, glob="*t*")) == ["w/notes.txt"]
    assert names([files.mkdir("v/deep/er")]) == ["v/deep/er"]
    files.delete("v", recursive=True)
    assert not files.exists("v") and files.exists("w/plain")
    [match] = files.search("pieces", "w").matches
    assert (match.path, match.line, match.column) == ("/workspace/w/notes.txt", 1, 4)


def test_errors_are_those_of_python(sandbox: SandboxClient) -> None:
    sandbox.execute("mkdir -p e/ro && chmod 500 e/ro; mkfifo e/fifo; ln -s /etc e/out")
    with pytest.raises(FileNotFoundError) as caught:
        sandbox.files.read("e/nothing")
    assert (caught.value.errno, caught.value.filename) == (errno.ENOENT, "e/nothing")
    for kind, path in (
        (PermissionError, "e/ro/x"),
        (IsADirectoryError, "e"),
        (NotADirectoryError, "e/fifo/x"),
    ):
        with pytest.raises(kind):
            sandbox.files.write(path, "x")
    with pytest.raises(InvalidPath):
        sandbox.files.read("e/out/passwd")
    with pytest.raises(FileNotFound):
        next(sandbox.files.watch("e/nothing"))


def test_a_large_file_goes_both_ways_over_a_network_that_breaks(stack: Stack, sandbox: SandboxClient) -> None:
    data = os.urandom(BIG)
    with cutting(stack.port) as proxy:
        far = SandboxClient.attach(sandbox.session_id, url=proxy.url, api_key=stack.key)
        far.files.write("big", io.BytesIO(data))
        proxy.cut_after = [300, 1 << 20, 100, 5 << 20, 10_000]
        proxy.cut()
        assert far.files.read("big") == data and proxy.cuts == 5


def test_trees_go_both_ways_and_links_that_lead_outside_stay_there(
    sandbox: SandboxClient, tmp_path: Path
) -> None:
    (source := tmp_path / "project" / "src").mkdir(parents=True)
    (source / "main.py").write_text("print('hi')")
    (source / "main.py").chmod(0o755)
    (source / "again.py").symlink_to("main.py")
    (tmp_path / "project" / os.fsdecode(b"\xff")).write_bytes(b"odd")
    told: list[int] = []
    sandbox.upload(tmp_path / "project", "p", progress=lambda done, _: told.append(done))
    assert sandbox.execute("p/src/main.py 2>&1 || python3 p/src/again.py").stdout.endswith("hi\n") and told
    sandbox.execute(
        "ln -s /etc/passwd p/sly; ln -s ../../.. p/src/up; mkfifo p/fifo; chmod u+s p/src/main.py"
    )
    done = sandbox.download("p", tmp_path / "back")
    assert (sorted(done.skipped), done.skipped_count) == (["sly", "src/up"], 3)
    assert sorted(os.listdir(os.fsencode(tmp_path / "back"))) == [b"src", b"\xff"]
    assert (tmp_path / "back" / "src" / "main.py").stat().st_mode & 0o7777 == 0o755
    assert os.readlink(tmp_path / "back" / "src" / "again.py") == "main.py"


def test_a_watch_sees_what_happens_after_its_start(sandbox: SandboxClient) -> None:
    sandbox.files.mkdir("seen")
    events = sandbox.files.watch("seen")
    assert next(events).type == "start"
    sandbox.execute("touch seen/a; mv seen/a seen/b")
    told = next(event for event in events if event.type == "moved")
    assert (told.path, told.old_path) == ("/workspace/seen/b", "/workspace/seen/a")
    events.close()


def test_a_url_is_good_without_a_key(sandbox: SandboxClient) -> None:
    put, get = sandbox.files.url("u.txt", for_="upload"), sandbox.files.url("u.txt")
    assert requests.put(put, data=b"from afar", timeout=20).status_code == 201
    assert requests.get(get, timeout=20).content == b"from afar"
    assert requests.get(get, timeout=20).status_code == 401, "and only once"


def test_artifacts_are_told_and_can_be_had(sandbox: SandboxClient, tmp_path: Path) -> None:
    result = sandbox.execute("mkdir -p artifacts && echo -n png > artifacts/plot.png")
    [artifact] = result.artifacts
    sandbox.download(artifact, tmp_path)
    assert (tmp_path / "plot.png").read_bytes() == sandbox.files.read(artifact) == b"png"
    assert names(sandbox.artifacts()) == ["artifacts/plot.png"]
    assert sandbox.execute("true").artifacts == ()


def test_snapshots_undo_and_forks(stack: Stack, sandbox: SandboxClient) -> None:
    sandbox.files.write("state", "1")
    taken = sandbox.snapshot("good")
    last = sandbox.execute("cd /tmp; export X=5; echo -n 2 > /workspace/state")
    with sandbox.fork()[0] as copy:
        assert copy.execute("echo $PWD $X $(cat /workspace/state)").stdout == "/tmp 5 2\n"
        copy.files.write("state", "3")
    assert sandbox.files.read("state") == b"2"
    assert copy.session_id not in [one.session_id for one in sandbox.list_sessions()]
    assert sandbox.undo().undone == last.execution_id
    assert sandbox.files.read("state") == b"1"
    sandbox.files.delete("state")
    sandbox.restore(taken)
    assert sandbox.files.read("state") == b"1" and taken in sandbox.snapshots()
    with stack.client(snapshot=taken) as other:
        assert other.files.read("state") == b"1"
        with pytest.raises(NothingToUndo):
            other.undo()
    sandbox.delete_snapshot(taken)
    with pytest.raises(SnapshotNotFound):
        sandbox.restore(taken)


def test_a_session_begins_with_files_and_leaves_its_workspace(stack: Stack, tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("1,2\n")
    with stack.client(workspace="sdk-kept", files=[tmp_path / "data.csv"], disk="32m") as first:
        assert first.execute("cat data.csv").stdout == "1,2\n"
        assert first.info().workspace == "sdk-kept" and first.info().disk == 32 << 20
        with pytest.raises(DiskFull) as caught:
            first.files.write("huge", bytes(40 << 20))
        assert caught.value.errno == errno.ENOSPC and not first.files.exists("huge")
        with pytest.raises(WorkspaceInUse):
            first.delete_workspace("sdk-kept")
    client = stack.client()
    assert client.download_workspace("sdk-kept", tmp_path / "kept").files >= 1
    assert (tmp_path / "kept" / "data.csv").read_text() == "1,2\n"
    client.delete_workspace("sdk-kept")
    assert "sdk-kept" not in [one.name for one in client.workspaces()]
    for upload in client.list_uploads():
        client.delete_upload(upload.file_id)


def test_the_awaiting_client_does_the_same(stack: Stack, sandbox: SandboxClient, tmp_path: Path) -> None:
    (tmp_path / "tree" / "d").mkdir(parents=True)
    (tmp_path / "tree" / "d" / "x").write_bytes(os.urandom(3 << 20))

    async def pieces() -> object:
        for number in range(20):
            yield b"%d" % number * 1000

    async def work() -> None:
        options = {"url": stack.url, "api_key": stack.key}
        async with AsyncSandboxClient.attach(sandbox.session_id, **options) as its:
            await its.files.write("async/pieces", pieces())
            assert len(await its.files.read("async/pieces")) == 30_000
            await its.upload(tmp_path / "tree", "async/tree")
            done = await its.download("async/tree", tmp_path / "back")
            assert (done.files, done.directories) == (1, 1)
            found = [one.name async for one in its.files.iterate("async", depth=9)]
            assert found == ["pieces", "tree", "d", "x"]
            with pytest.raises(FileNotFoundError):
                await its.files.read("async/nothing")
            events = its.files.watch("async")
            assert (await events.__anext__()).type == "start"
            threading.Thread(target=sandbox.files.mkdir, args=("async/new",)).start()
            assert (await events.__anext__()).path == "/workspace/async/new"
            await events.aclose()
            for copy in await its.fork():
                async with copy:
                    assert await copy.files.exists("async/tree/d/x")

    asyncio.run(work())
    assert (tmp_path / "back" / "d" / "x").read_bytes() == (tmp_path / "tree" / "d" / "x").read_bytes()
