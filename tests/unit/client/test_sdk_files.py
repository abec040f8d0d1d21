"""Files through both clients: what is sent, what comes back, and connections that break in between."""

import asyncio
import errno
import io
import pickle
from datetime import datetime, timedelta, timezone
from pathlib import Path, PurePosixPath

import pytest
from sandbox_client import (
    AsyncSandboxClient,
    ConfigurationError,
    Conflict,
    ConnectionLost,
    DirectoryNotEmpty,
    DiskFull,
    FileChanged,
    FileError,
    FileEvent,
    FileExists,
    FileNotFound,
    FilePermissionDenied,
    IsADirectory,
    NotADirectory,
    SandboxClient,
    SandboxError,
    TextNotUnique,
    TooLarge,
    UnexpectedAnswer,
)
from sdk_shelf import Shelf
from sdk_wire import KEY, SESSION, problem

ODD = b"caf\xe9 \xff%+&.txt"


@pytest.fixture
def shelf():
    server = Shelf()
    yield server
    server.stop()


@pytest.fixture
def sandbox(shelf):
    with SandboxClient.attach("s1", url=shelf.url, api_key=KEY) as client:
        yield client


def awaiting(shelf, work, **options):
    async def inside():
        options_ = {"url": shelf.url, "api_key": KEY, **options}
        async with AsyncSandboxClient.attach("s1", **options_) as sandbox:
            return await work(sandbox)

    return asyncio.run(inside())


def refusal(code, status, **extras):
    return [(status, problem(code, status, **extras).body)]


def test_what_is_written_can_be_read(sandbox, shelf):
    info = sandbox.files.write("notes/a.txt", "grün\n", mode=0o755)
    assert (info.path, info.name, info.size, info.is_file) == ("notes/a.txt", "a.txt", 6, True)
    assert info.modified_at == datetime(2030, 1, 1, tzinfo=timezone.utc)
    [sent] = shelf.asked("PUT", "files/content")
    assert sent.query["mode"] == "0755" and sent.headers["content-length"] == "6"
    assert sandbox.files.read("notes/a.txt") == "grün\n".encode()
    assert sandbox.files.read_text(PurePosixPath("notes/a.txt")) == "grün\n"
    assert sandbox.files.read_text(info, encoding="latin-1") == "grÃ¼n\n"
    sandbox.files.write("empty", b"")
    assert sandbox.files.read("empty") == b""


class Unseekable(io.RawIOBase):
    """As a pipe is."""

    def __init__(self, data):
        self._data = io.BytesIO(data)

    def readable(self):
        return True

    def read(self, size=-1):
        return self._data.read(size)


@pytest.mark.parametrize("kind", [bytes, io.BytesIO, Unseekable, iter, "async"])
def test_any_source_is_sent_in_pieces_by_both_clients(sandbox, shelf, kind):
    data = bytes(range(256)) * 3000

    async def coming():
        for piece in pieces:
            yield piece

    def source():
        if kind == "async":
            return coming()
        return iter(pieces) if kind is iter else kind(data)

    pieces = [data[:1], b"", data[1:500_000], data[500_000:]]
    if kind != "async":
        sandbox.files.write("one", source())
        assert shelf.files[b"one"] == data
    awaiting(shelf, lambda its: its.files.write("two", source()))
    assert shelf.files[b"two"] == data
    sized = kind in (bytes, io.BytesIO)
    assert all(("content-length" in one.headers) == sized for one in shelf.asked("PUT", "files/content"))


def test_a_path_stands_for_the_local_file_there(sandbox, shelf, tmp_path):
    local = tmp_path / "local"
    local.write_bytes(bytes(range(256)) * 3000)
    sandbox.files.write("a", local)
    awaiting(shelf, lambda its: its.files.write("b", local))
    assert shelf.files[b"a"] == shelf.files[b"b"] == local.read_bytes()
    with pytest.raises(FileNotFoundError) as caught:
        sandbox.files.write("c", tmp_path / "missing")
    assert not isinstance(caught.value, FileError), "it is this machine's"


def test_a_file_is_sent_from_where_it_stands(sandbox, shelf):
    file = io.BytesIO(b"skip this")
    file.seek(5)
    sandbox.files.write("x", file)
    assert shelf.files[b"x"] == b"this"


def test_text_files_and_asynchronous_sources_are_refused_with_a_reason(sandbox, tmp_path):
    (tmp_path / "text").write_text("words")
    with (tmp_path / "text").open() as text, pytest.raises(ConfigurationError, match="binary mode"):
        sandbox.files.write("x", text)

    async def pieces():
        yield b""

    with pytest.raises(ConfigurationError, match="AsyncSandboxClient"):
        sandbox.files.write("x", pieces())


def test_an_upload_that_breaks_is_sent_again_only_if_its_source_can_be(sandbox, shelf):
    data = bytes(300_000)
    for source in (data, io.BytesIO(data)):
        shelf.lost = [5000]
        sandbox.files.write("x", source)
        assert shelf.files.pop(b"x") == data
    shelf.lost = [5000]
    with pytest.raises(ConnectionLost):
        sandbox.files.write("x", iter([data, data]))
    shelf.lost = [5000]
    with pytest.raises(ConnectionLost):
        awaiting(shelf, lambda its: its.files.write("x", Unseekable(data)))
    assert shelf.files == {}


@pytest.mark.parametrize("condition", [{"create_only": True}, {"if_match": "abc"}])
def test_a_conditional_write_is_sent_once(sandbox, shelf, condition):
    """Whether the first one was done cannot be told from the second one's answer."""
    shelf.lost = [1]
    with pytest.raises(ConnectionLost):
        sandbox.files.write("x", b"data", **condition)
    sandbox.files.write("x", b"data", **condition)
    headers = shelf.asked("PUT", "files/content")[-1].headers
    assert (headers.get("if-none-match"), headers.get("if-match")) in (("*", None), (None, '"abc"'))


def test_an_error_of_the_source_is_not_taken_for_one_of_the_network(sandbox, shelf):
    def pieces():
        yield b"some"
        raise BrokenPipeError(errno.EPIPE, "the source broke")

    for write in (
        lambda: sandbox.files.write("x", pieces()),
        lambda: awaiting(shelf, lambda its: its.files.write("x", pieces())),
    ):
        with pytest.raises(BrokenPipeError, match="the source broke"):
            write()
    assert shelf.files == {}


@pytest.mark.parametrize("cuts", [[1000], [0, 0, 5], [100_000, 1, 199_000]])
def test_a_download_goes_on_where_it_broke(sandbox, shelf, cuts):
    shelf.files[b"x"] = data = bytes(range(256)) * 1000
    shelf.cuts = list(cuts)
    assert sandbox.files.read("x") == data
    shelf.cuts = list(cuts)
    assert awaiting(shelf, lambda its: its.files.read("x")) == data
    ranges = [one.headers.get("range") for one in shelf.asked("GET", "files/content")]
    assert ranges[:2] == [None, f"bytes={cuts[0]}-255999"]


def test_a_file_that_changed_meanwhile_is_told(sandbox, shelf):
    shelf.files[b"x"] = bytes(500_000)
    shelf.cuts = [300_000]
    shelf.on_cut = lambda: shelf.files.update({b"x": b"other"})
    with pytest.raises(FileChanged) as caught:
        sandbox.files.read("x")
    assert (caught.value.filename, str(caught.value)) == ("x", "x: The file changed while it was read.")


@pytest.mark.parametrize("cut", range(0, 160, 7))
def test_an_answer_whose_head_breaks_off_is_never_taken_for_an_empty_file(sandbox, shelf, cut):
    """Python's own HTTP takes half a head for a whole one."""
    shelf.files[b"x"] = b"data"
    shelf.head_cuts = [cut]
    assert sandbox.files.read("x") == b"data"
    shelf.head_cuts = [cut]
    assert awaiting(shelf, lambda its: its.files.read("x")) == b"data"


def test_a_part_is_read_in_pieces(sandbox, shelf):
    shelf.files[b"x"] = b"0123456789"
    assert list(sandbox.files.read_stream("x", start=2, end=9, chunk_size=3)) == [b"234", b"567", b"8"]
    assert b"".join(sandbox.files.read_stream("x", start=7)) == b"789"
    assert list(sandbox.files.read_stream("x", start=3, end=3)) == []
    with pytest.raises(ValueError):
        list(sandbox.files.read_stream("x", start=-1))

    async def pieces(its):
        return [piece async for piece in its.files.read_stream("x", end=4)]

    assert awaiting(shelf, pieces) == [b"0123"]


def test_leaving_a_read_early_hangs_up(sandbox, shelf):
    shelf.files[b"x"] = bytes(3 << 20)
    for piece in sandbox.files.read_stream("x", chunk_size=10):
        assert len(piece) == 10
        break
    assert sandbox.files.stat("x").size == 3 << 20


def test_names_that_are_not_utf8_survive(sandbox, shelf):
    name = ODD.decode("utf-8", "surrogateescape")
    info = sandbox.files.write(name, b"data")
    assert (info.path, info.name) == (name, name) and shelf.files == {ODD: b"data"}
    assert sandbox.files.read(ODD) == sandbox.files.read(info) == b"data"
    assert [one.path for one in sandbox.files.list()] == [name]
    shelf.script["files/move"] = [(200, shelf.entry(b"plain"))]
    sandbox.files.move(info, "plain")
    [sent] = shelf.asked("POST", "files/move")
    assert set(sent.json) == {"source_base64", "destination", "overwrite"}
    with pytest.raises(ConfigurationError):
        sandbox.files.read("\ud800")


def test_a_list_is_read_to_its_end(sandbox, shelf):
    shelf.files = {b"%d" % number: b"" for number in range(5)}
    assert [one.path for one in sandbox.files.list(Path("sub"), depth=3, glob="*.py")] == list("01234")
    first, *_ = sent = shelf.asked("GET", "files")
    assert (first.path, first.query["depth"], first.query["glob"], len(sent)) == (b"sub", "3", "*.py", 3)
    assert next(sandbox.files.iterate()).path == "0"

    async def names(its):
        return [one.path async for one in its.files.iterate()], len(await its.files.list())

    assert awaiting(shelf, names) == (list("01234"), 5)


def test_the_other_verbs_ask_what_they_say(sandbox, shelf):
    shelf.files[b"a"] = b"x"
    entry = shelf.entry(b"a")
    match = {"path": "a", "line": 3, "column": 1, "text": "x", "before": ["w"], "after": []}
    shelf.script = {
        "files/mkdir": [(201, {**entry, "type": "directory"})],
        "files/copy": [(200, entry)],
        "files/search": [(200, {"matches": [match], "files_searched": 9, "truncated": True})],
        "files/edit": [(200, {"path": "a", "replacements": 2, "entry": entry})],
        "files/urls": [(201, {"url": "/d/abc", "method": "GET"}), (201, {"url": "https://x/y"})],
    }
    files = sandbox.files
    assert files.exists("a") and not files.exists("b")
    assert files.mkdir("d", mode=0o700).is_directory
    assert files.copy("a", "b", overwrite=True).path == "a"
    found = files.search("x", "src", glob="*.py", regex=True)
    assert (found.matches[0].line, found.matches[0].before, found.truncated) == (3, ("w",), True)
    edit = files.edit("a", "old", "new", replace_all=True)
    assert (edit.replacements, edit.entry.path) == (2, "a")
    assert files.url("a") == f"{shelf.url}/d/abc" and files.url("a", "upload", 60) == "https://x/y"
    files.delete("a", recursive=True)
    bodies = {one.route: one.json for one in shelf.sent if one.method == "POST"}
    assert bodies["files/mkdir"] == {"path": "d", "parents": True, "mode": "0700"}
    assert bodies["files/copy"]["overwrite"] and bodies["files/search"]["glob"] == "*.py"
    assert bodies["files/edit"] == {"path": "a", "old": "old", "new": "new", "replace_all": True}
    assert bodies["files/urls"] == {"path": "a", "for": "upload", "expires_in": 60}
    assert shelf.asked("DELETE", "files")[0].query == {"path": "a", "recursive": "true"}


@pytest.mark.parametrize(
    ("code", "status", "kind", "builtin", "number"),
    [
        ("not_found", 404, FileNotFound, FileNotFoundError, errno.ENOENT),
        ("permission_denied", 403, FilePermissionDenied, PermissionError, errno.EACCES),
        ("is_directory", 409, IsADirectory, IsADirectoryError, errno.EISDIR),
        ("not_a_directory", 409, NotADirectory, NotADirectoryError, errno.ENOTDIR),
        ("already_exists", 409, FileExists, FileExistsError, errno.EEXIST),
        ("directory_not_empty", 409, DirectoryNotEmpty, OSError, errno.ENOTEMPTY),
        ("disk_full", 507, DiskFull, OSError, errno.ENOSPC),
        ("too_large", 413, TooLarge, OSError, errno.EFBIG),
        ("operation_timeout", 408, FileError, TimeoutError, errno.ETIMEDOUT),
        ("invalid_path", 400, FileError, OSError, errno.EINVAL),
    ],
)
def test_errors_are_those_that_python_has_for_files(sandbox, shelf, code, status, kind, builtin, number):
    shelf.script["files/content"] = refusal(code, status, path="x") * 2
    with pytest.raises(builtin) as caught:
        sandbox.files.read("some/file")
    error = caught.value
    assert isinstance(error, kind) and isinstance(error, SandboxError)
    assert (error.errno, error.filename, error.status) == (number, "some/file", status)
    assert str(error) == f"some/file: about {code}"
    again = pickle.loads(pickle.dumps(error))
    assert (again.filename, again.errno, again.code, str(again)) == ("some/file", number, code, str(error))
    with pytest.raises(kind):
        awaiting(shelf, lambda its: its.files.read("x"))


def test_an_error_of_a_move_names_both_paths(sandbox, shelf):
    shelf.script["files/move"] = refusal("already_exists", 409, path="a")
    with pytest.raises(FileExistsError) as caught:
        sandbox.files.move("a", b"b\xff")
    assert (caught.value.filename, caught.value.filename2) == ("a", "b\udcff")
    assert str(pickle.loads(pickle.dumps(caught.value))) == "a -> 'b\\udcff': about already_exists"


def test_an_error_of_a_destination_names_only_that(sandbox, shelf):
    shelf.script["files/copy"] = refusal("not_found", 404, path="no/b\ufffd")
    with pytest.raises(FileNotFoundError) as caught:
        sandbox.files.copy("a", b"no/b\xff")
    assert (caught.value.filename, caught.value.filename2) == ("no/b\udcff", None)


def test_a_server_without_files_is_not_a_missing_file(sandbox, shelf):
    shelf.script["files/content"] = refusal("not_found", 404)
    with pytest.raises(UnexpectedAnswer):
        sandbox.files.read("x")


def test_a_text_that_is_not_unique_says_how_often_it_is_there(sandbox, shelf):
    shelf.script["files/edit"] = refusal("text_not_unique", 409, count=3)
    with pytest.raises(TextNotUnique) as caught:
        sandbox.files.edit("x", "a", "b")
    assert caught.value.count == 3


@pytest.mark.parametrize("code", ["precondition_failed", "text_not_found", "text_not_unique", "file_changed"])
def test_what_contradicts_a_file_is_an_error_of_that_file(sandbox, shelf, code):
    shelf.script["files/edit"] = refusal(code, 409)
    with pytest.raises(FileError) as caught:
        sandbox.files.edit("x", "a", "b")
    assert isinstance(caught.value, Conflict) and caught.value.errno
    assert (caught.value.filename, caught.value.code) == ("x", code)
    assert str(pickle.loads(pickle.dumps(caught.value))) == f"x: about {code}"


def test_a_watch_tells_changes_and_what_a_broken_connection_may_have_missed(sandbox, shelf):
    created = {"type": "created", "path": "a", "directory": False}
    moved = {"type": "moved", "path": "?", "path_base64": "/w==", "old_path": "a"}
    streams = [[created, {"event": "keepalive"}], [moved, {"type": "end"}]]
    expected = [
        FileEvent("start", "src", directory=True),
        FileEvent("created", "a"),
        FileEvent("overflow", "src", directory=True),
        FileEvent("moved", "\udcff", old_path="a"),
    ]
    shelf.streams = list(streams)
    assert list(sandbox.files.watch("src", recursive=True)) == expected
    assert shelf.asked("GET", "files/watch")[0].query == {"path": "src", "recursive": "true"}

    async def events(its):
        return [event async for event in its.files.watch("src")]

    shelf.streams = list(streams)
    assert awaiting(shelf, events) == expected


def test_a_watch_of_nothing_is_told_at_once(sandbox, shelf):
    shelf.script["files/watch"] = refusal("not_found", 404, path="x")
    with pytest.raises(FileNotFoundError):
        next(sandbox.files.watch("x"))


def test_artifacts_are_the_files_there_now(sandbox, shelf):
    shelf.files = {b"artifacts/a.png": b"1", b"artifacts/b": b"2"}
    assert [one.path for one in sandbox.artifacts()] == ["artifacts/a.png", "artifacts/b"]
    shelf.script["files"] = refusal("not_found", 404, path="artifacts")
    assert sandbox.artifacts() == []


def test_a_result_tells_its_artifacts_and_a_full_disk(sandbox, shelf):
    artifact = {"path": "artifacts/plot.png", "size": 3, "mime": "image/png", "sha256": None, "url": "/u"}
    result = {"exit_code": 1, "stderr": "No space left", "disk_full": True, "artifacts": [artifact]}
    shelf.script["execute"] = [(200, result), (200, {"exit_code": 0})]
    first, old = sandbox.execute("make"), sandbox.execute("make")
    assert first.summary == "exit code 1, the disk is full: No space left"
    shelf.files[b"artifacts/plot.png"] = b"png"
    assert sandbox.files.read(first.artifacts[0]) == b"png"
    assert (old.artifacts, old.disk_full) == ((), False)


def test_snapshots_restore_and_undo(sandbox, shelf):
    taken = {"snapshot_id": "n1", "session_id": "s1", "name": "good", "kind": "snapshot", "size": 5}
    shelf.script = {
        "snapshots": [(201, taken), (200, {"snapshots": [taken]})],
        "restore": [(200, SESSION)],
        "undo": [(200, {"session": SESSION, "undone": "e7", "snapshot_id": "n2"})],
        "/v1/snapshots": [(200, {"snapshots": [taken, taken]})],
    }
    snapshot = sandbox.snapshot("good")
    assert sandbox.snapshots() == [snapshot] and len(sandbox.list_snapshots()) == 2
    assert sandbox.restore(snapshot).session_id == "s1"
    assert sandbox.undo().undone == "e7"
    sandbox.delete_snapshot(snapshot)
    assert shelf.asked("POST", "snapshots")[0].headers["idempotency-key"]
    assert shelf.asked("POST", "restore")[0].json == {"snapshot_id": "n1"}
    assert [one.route for one in shelf.sent if one.method == "DELETE"] == ["/v1/snapshots/n1"]
    with pytest.raises(ConfigurationError):
        sandbox.restore("../x")


def test_a_fork_is_clients_whose_sessions_end_with_them(sandbox, shelf):
    sessions = {"sessions": [{**SESSION, "session_id": "f1"}, {**SESSION, "session_id": "f2"}]}
    shelf.script["fork"] = [(201, sessions)] * 2
    first, second = sandbox.fork(2)
    assert isinstance(first, SandboxClient) and second.session_id == "f2"
    with first:
        first.files.write("x", b"")
    second.close()

    async def forked(its):
        for copy in await its.fork(2):
            async with copy:
                assert isinstance(copy, AsyncSandboxClient)

    awaiting(shelf, forked)
    ended = [one.route for one in shelf.sent if one.method == "DELETE"]
    assert ended == ["/v1/sessions/f1", "/v1/sessions/f2"] * 2
    assert shelf.asked("POST", "fork")[0].query == {"count": "2"}


def test_workspaces_are_listed_and_deleted(sandbox, shelf):
    kept = {"name": "ada", "size": 9, "created_at": "2030-01-01T00:00:00Z", "session_id": None}
    pages = [{"workspaces": [kept], "next_cursor": "ada"}, {"workspaces": [{**kept, "name": "eve"}]}]
    shelf.script["/v1/workspaces"] = [(200, page) for page in pages]
    assert [one.name for one in sandbox.workspaces()] == ["ada", "eve"]
    assert [one.query for one in shelf.sent if one.route == "/v1/workspaces"] == [{}, {"cursor": "ada"}]
    sandbox.delete_workspace("user:ada/x")
    assert shelf.sent[-1].route == "/v1/workspaces/user%3Aada%2Fx"


def test_options_of_a_session_are_sent_and_local_files_are_uploaded_first(shelf, tmp_path):
    (tmp_path / 'a "b".csv').write_bytes(b"1,2\r\n--")
    uploaded = {"files": [{"file_id": "f" * 32, "name": "x", "size": 7}]}
    shelf.script = {"/upload": [(201, uploaded)] * 2, "/v1/sessions": [(201, {**SESSION, "disk": 7})]}
    options = {"workspace": "ada", "persist": True, "datasets": ["sales"], "checkpoint": True}
    files = [tmp_path / 'a "b".csv', "0" * 32]
    sandbox = SandboxClient(url=shelf.url, api_key=KEY, disk="1g", files=files, snapshot="n1", **options)
    sandbox.execute("true")
    [created] = [one for one in shelf.sent if one.route == "/v1/sessions"]
    assert created.json == {**options, "disk": 2**30, "snapshot": "n1", "files": ["f" * 32, "0" * 32]}
    [upload] = shelf.asked("POST", "/upload")
    assert b'filename="a %22b%22.csv"' in upload.body and b"\r\n\r\n1,2\r\n--\r\n--" in upload.body
    assert sandbox.upload_files(tmp_path / 'a "b".csv') == ["f" * 32]
    page = uploaded["files"]
    shelf.script["/v1/uploads"] = [(200, {"files": page, "next_cursor": "c"}), (200, {"files": page})]
    assert [one.file_id for one in sandbox.list_uploads()] == ["f" * 32] * 2
    sandbox.delete_upload("f" * 32)
    assert shelf.sent[-1].route == f"/v1/uploads/{'f' * 32}"
    sandbox.close()
    with pytest.raises(ConfigurationError, match="list"):
        SandboxClient(url=shelf.url, api_key=KEY, datasets="sales")
    with pytest.raises(FileNotFoundError):
        SandboxClient(url=shelf.url, api_key=KEY, files=["no/such"]).execute("true")


def test_the_audit_is_read_page_by_page_up_to_a_limit(sandbox, shelf):
    record = {"seq": 7, "action": "file.write", "outcome": "done", "at": "2030-01-01T00:00:00.000Z", "new": 1}
    page = {"records": [record], "next_cursor": 7}
    shelf.script["/v1/audit"] = [(200, page), (200, {**page, "next_cursor": None}), (200, page)]
    since = datetime(2029, 1, 1, tzinfo=timezone(timedelta(hours=1)))
    found = sandbox.audit(action="file.write", since=since, newest_first=True)
    assert [(one.seq, one.action, one.at.year, one["code"]) for one in found] == [
        (7, "file.write", 2030, None)
    ] * 2
    first, second = shelf.asked("GET", "/v1/audit")
    wanted = {"action": "file.write", "since": "2028-12-31T23:00:00+00:00", "order": "desc", "limit": "1000"}
    assert (first.query, second.query) == (wanted, {**wanted, "cursor": "7"})
    assert len(sandbox.audit(limit=1)) == 1
