"""Uploads and downloads of files and trees: whole or not at all, and nothing where it does not belong."""

import asyncio
import errno
import io
import os
import random
import socket
import stat
import tarfile
import tracemalloc

import pytest
from sandbox_client import (
    AsyncSandboxClient,
    ConnectionLost,
    FileNotFound,
    InvalidArchive,
    SandboxClient,
    SandboxError,
)
from sandbox_client.tar_in import MOST_LINKS, Unpacker, stays_inside
from sdk_shelf import Shelf
from sdk_wire import KEY

ODD = b"caf\xe9\xff"


@pytest.fixture
def shelf():
    server = Shelf()
    yield server
    server.stop()


@pytest.fixture(params=["blocking", "awaiting"])
def its(shelf, request):
    """Calls a method of a client, of one kind and the other."""

    def call(name, *args, **options):
        if request.param == "blocking":
            with SandboxClient.attach("s1", url=shelf.url, api_key=KEY) as sandbox:
                return getattr(sandbox, name)(*args, **options)

        async def inside():
            async with AsyncSandboxClient.attach("s1", url=shelf.url, api_key=KEY) as sandbox:
                return await getattr(sandbox, name)(*args, **options)

        return asyncio.run(inside())

    return call


def member(name, kind=tarfile.REGTYPE, data=b"", target="", mode=0o644):
    info = tarfile.TarInfo(name)
    info.type, info.size, info.linkname, info.mode = kind, len(data), target, mode
    return info, data


def tar(*members, form=tarfile.GNU_FORMAT):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form, encoding="utf-8") as archive:
        for info, data in members:
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


LINK, HARD, DIR = tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE


def tree(root):
    """All that is there: content of files, targets of links, None for directories."""
    found = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        content = None if path.is_dir() else path.read_bytes() if path.is_file() else "?"
        found[name] = os.readlink(path) if path.is_symlink() else content
    return found


def test_a_file_is_uploaded_with_its_mode_and_progress(its, shelf, tmp_path):
    (tmp_path / "run.sh").write_bytes(data := bytes(700_000))
    (tmp_path / "run.sh").chmod(0o4755)
    told = []
    done = its("upload", tmp_path / "run.sh", "bin/run.sh", progress=lambda *now: told.append(now))
    assert (done.path, done.files, done.bytes) == ("bin/run.sh", 1, 700_000)
    assert shelf.files[b"bin/run.sh"] == data
    assert shelf.asked("PUT", "files/content")[0].query["mode"] == "0755"
    assert told[0] == (0, 700_000) and told[-1] == (700_000, 700_000) and told == sorted(told)


@pytest.mark.parametrize(
    ("remote", "expected"),
    [(None, b"a.csv"), (".", b"a.csv"), ("d/", b"d/a.csv"), ("there", b"there/a.csv"), ("x/y", b"x/y")],
)
def test_a_file_may_go_into_a_directory(its, shelf, tmp_path, remote, expected):
    shelf.files[b"there/before"] = b""
    (tmp_path / "a.csv").write_bytes(b"1,2")
    its("upload", str(tmp_path / "a.csv"), remote)
    assert shelf.files[expected] == b"1,2"


def test_a_directory_is_uploaded_as_a_stream(its, shelf, tmp_path):
    (root := tmp_path / "project").mkdir()
    (root / "empty").mkdir()
    (root / ("d" * 120)).mkdir()
    (root / ("d" * 120) / "deep.bin").write_bytes(deep := os.urandom(600_000))
    (root / "link").symlink_to("../outside")
    (root / "tool").write_bytes(b"#!")
    (root / "tool").chmod(0o6755)
    os.mkfifo(root / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(root / "socket"))
    with open(os.path.join(os.fsencode(root), ODD), "wb") as odd:
        odd.write(b"odd")
    told = []
    done = its("upload", root, "there", progress=lambda *now: told.append(now))
    assert (done.path, done.files, done.skipped) == ("there", 2, ("bad",))
    [sent] = shelf.asked("PUT", "files/archive")
    assert (sent.path, sent.query["format"]) == (b"there", "tar")
    assert sent.headers["transfer-encoding"] == "chunked"
    assert told[-1] == (len(sent.body), len(sent.body))
    with tarfile.open(fileobj=io.BytesIO(sent.body), errors="surrogateescape") as archive:
        found = {one.name: one for one in archive}
        assert archive.extractfile(f"{'d' * 120}/deep.bin").read() == deep
    odd_name = ODD.decode(errors="surrogateescape")
    assert set(found) == {"empty", "d" * 120, f"{'d' * 120}/deep.bin", "link", "tool", odd_name}
    assert found["link"].linkname == "../outside" and found["tool"].mode == 0o755


def test_what_cannot_be_read_here_is_an_error_of_here(its, shelf, tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        its("upload", tmp_path / "nothing", "x")
    assert not isinstance(caught.value, SandboxError) and shelf.sent == []


def test_a_file_is_downloaded_as_a_whole(its, shelf, tmp_path):
    shelf.files[b"out/a.bin"] = data = os.urandom(700_000)
    told = []
    done = its("download", "out/a.bin", tmp_path / "new" / "b.bin", progress=lambda *now: told.append(now))
    assert (done.path, done.bytes) == (str(tmp_path / "new" / "b.bin"), 700_000)
    assert (tmp_path / "new" / "b.bin").read_bytes() == data and told[-1] == (700_000, 700_000)
    assert stat.S_IMODE((tmp_path / "new" / "b.bin").stat().st_mode) == 0o640 & ~_umask()
    its("download", "out/a.bin", tmp_path)
    its("download", "out/a.bin", f"{tmp_path}/other/")
    assert (tmp_path / "a.bin").read_bytes() == (tmp_path / "other" / "a.bin").read_bytes() == data


def test_a_download_that_fails_leaves_what_was_there(shelf, tmp_path):
    shelf.files[b"x"] = bytes(500_000)
    (tmp_path / "x").write_text("before")
    shelf.cuts = [100_000] * 5
    shelf.on_cut = lambda: shelf.files.update({b"x": os.urandom(500_000)})
    with SandboxClient.attach("s1", url=shelf.url, api_key=KEY) as sandbox:
        with pytest.raises(SandboxError):
            sandbox.download("x", tmp_path / "x")
        with pytest.raises(FileNotFound):
            sandbox.download("nothing", tmp_path / "y")
    assert tree(tmp_path) == {"x": b"before"}


def test_a_device_is_written_to_and_never_replaced(its, shelf):
    shelf.files[b"x"] = b"data"
    its("download", "x", "/dev/null")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_a_link_here_is_followed_to_what_it_means(its, shelf, tmp_path):
    shelf.files[b"x"] = b"data"
    (tmp_path / "real").write_bytes(b"")
    (tmp_path / "name").symlink_to("real")
    its("download", "x", tmp_path / "name")
    assert (tmp_path / "real").read_bytes() == b"data" and (tmp_path / "name").is_symlink()


def test_a_directory_is_downloaded_with_all_that_is_in_it(its, shelf, tmp_path):
    shelf.files[b"results/a"] = b""
    long = f"{'n' * 200}/{'m' * 150}"
    shelf.archive = tar(
        member("d", DIR, mode=0o500),
        member("d/run", data=b"#!" * 400, mode=0o6755),
        member("d/up", LINK, target="../a"),
        member("a", data=b"A"),
        member("same", HARD, target="a"),
        member(long, data=b"deep"),
        member(ODD.decode(errors="surrogateescape"), data=b"odd"),
    )
    told = []
    done = its("download", "results", tmp_path / "results", progress=lambda *now: told.append(now))
    assert (done.files, done.directories, done.bytes, done.skipped) == (5, 1, 808, ())
    assert told[-1] == (808, None)
    odd = ODD.decode(errors="surrogateescape")
    assert {name: content for name, content in tree(tmp_path / "results").items() if content is not None} == {
        "a": b"A",
        "d/run": b"#!" * 400,
        "d/up": "../a",
        long: b"deep",
        odd: b"odd",
        "same": b"A",
    }
    mode = (tmp_path / "results" / "d" / "run").stat().st_mode
    assert stat.S_IMODE(mode) == 0o755 & ~_umask(), "neither setuid nor setgid"
    assert os.listdir(tmp_path) == ["results"]


def test_a_directory_that_is_there_is_merged_without_following_its_links(its, shelf, tmp_path):
    shelf.files[b"r/a"] = b""
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key").write_text("mine")
    (tmp_path / "r" / "d").mkdir(parents=True)
    (tmp_path / "r" / "kept").write_text("kept")
    (tmp_path / "r" / "file").symlink_to("../secret/key")
    (tmp_path / "r" / "out").symlink_to("../secret")
    shelf.archive = tar(
        member("file", data=b"new"), member("d/x", data=b"x"), member("sly", LINK, target="out/key")
    )
    done = its("download", "r", tmp_path / "r")
    assert tree(tmp_path / "r") == {
        "d": None,
        "d/x": b"x",
        "file": b"new",
        "kept": b"kept",
        "out": "../secret",
    }
    assert done.skipped == ("sly",) and (tmp_path / "secret" / "key").read_text() == "mine"
    shelf.archive = tar(member("out/key", data=b"bad"))
    with pytest.raises(NotADirectoryError):
        its("download", "r", tmp_path / "r")
    assert (tmp_path / "secret" / "key").read_text() == "mine"
    assert sorted(os.listdir(tmp_path)) == ["r", "secret"]


@pytest.mark.parametrize(
    "members",
    [
        [member("../evil", data=b"x")],
        [member("/evil", data=b"x")],
        [member("a/../../evil", data=b"x")],
        [member("x" * 5000, data=b"x")],
        [member("/".join(["d"] * 300), data=b"x")],
        [member("a", data=b"x"), member("a/b", data=b"y")],
        [member("a/b", data=b"x"), member("a", data=b"y")],
        [member("h", HARD, target="../../secret")],
        [member("s", tarfile.GNUTYPE_SPARSE, data=b"x")],
        [member(".", data=b"x")],
        *([[member(f"l{n}", LINK, target="t" * 4000) for n in range(MOST_LINKS // 4000)]]),
    ],
)
def test_an_archive_that_reaches_out_is_refused_as_a_whole(shelf, tmp_path, members):
    shelf.files[b"r/a"] = b""
    shelf.archive = tar(member("good", data=b"good"), *members)
    home = tmp_path / "home"
    home.mkdir()
    with SandboxClient.attach("s1", url=shelf.url, api_key=KEY) as sandbox, pytest.raises(InvalidArchive):
        sandbox.download("r", home / "r")
    assert tree(tmp_path) == {"home": None}


@pytest.mark.parametrize(
    "members",
    [
        [member("l", LINK, target="/etc/passwd")],
        [member("l", LINK, target="../secret")],
        [member("l", LINK, target="d/../../secret")],
        [member("d/l", LINK, target="../../secret")],
        [member("s", LINK, target="."), member("l", LINK, target="s/../secret")],
        [member("l", LINK, target="")],
        [member("d", DIR), member("d", LINK, target="x")],
        [member("h", HARD, target="nothing")],
        [member("h", HARD, target="h")],
        [member("f", tarfile.FIFOTYPE)],
        [member("c", tarfile.CHRTYPE)],
        [member("b", tarfile.BLKTYPE)],
        [member("odd", b"Z", data=b"payload")],
    ],
)
def test_what_leads_outside_or_is_no_file_is_left_out(shelf, tmp_path, members):
    shelf.files[b"r/a"] = b""
    (tmp_path / "secret").write_text("mine")
    shelf.archive = tar(*members, member("good", data=b"good"))
    with SandboxClient.attach("s1", url=shelf.url, api_key=KEY) as sandbox:
        done = sandbox.download("r", tmp_path / "r")
    found = tree(tmp_path / "r")
    assert found.pop("good") == b"good" and len(done.skipped) == 1
    assert set(found) <= {"d", "s"} and (tmp_path / "secret").read_text() == "mine"


def test_nothing_is_written_through_a_link_of_the_archive(shelf, tmp_path):
    """The classic: a link to a directory, then a file "in" it. Here it becomes a directory of that name."""
    shelf.files[b"r/a"] = b""
    (tmp_path / "d").mkdir()
    shelf.archive = tar(
        member("e", DIR), member("d", LINK, target="e"), member("d/evil", data=b"x"), member("e/x", data=b"y")
    )
    with SandboxClient.attach("s1", url=shelf.url, api_key=KEY) as sandbox:
        assert sandbox.download("r", tmp_path / "r").skipped == ("d",)
    assert tree(tmp_path / "r") == {"d": None, "d/evil": b"x", "e": None, "e/x": b"y"}


def test_no_chain_of_links_that_are_made_leads_outside(tmp_path):
    """Random links by the rule, in random trees: wherever one leads, it is inside."""
    chance = random.Random(7)
    for round_ in range(40):
        root = tmp_path / str(round_) / "root"
        root.mkdir(parents=True)
        unpacker = Unpacker(str(root))
        names = ["a", "b", "c", "a/x", "a/y", "b/z", "a/x/deep"]
        members = [member(name, DIR) for name in chance.sample(names, 3)]
        for number in range(12):
            words = chance.choices(["..", ".", "a", "x", "l1", "l2", "l3", "l4"], k=chance.randint(1, 5))
            where = chance.choice(["", "a/", "a/x/", "b/"])
            members.append(member(f"{where}l{number}", LINK, target="/".join(words)))
        unpacker.feed(tar(*members))
        unpacker.close()
        for path in root.rglob("*"):
            real = os.path.realpath(path)
            assert os.path.commonpath([real, str(root)]) == str(root), (path, os.readlink(path))
    assert stays_inside(1, "../a/b") and not stays_inside(0, "../a") and not stays_inside(3, "a/../b")


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
def test_every_form_of_tar_is_read_however_it_is_cut(tmp_path, form):
    name = "grün/" + "n" * 90 if form != tarfile.USTAR_FORMAT else "plain/" + "n" * 90
    long = name if form == tarfile.USTAR_FORMAT else name * 2
    archive = tar(member(long, data=b"x" * 1000), member("l", LINK, target=long[:90]), form=form)
    for size in (1, 511, 513, len(archive)):
        root = tmp_path / str(size)
        root.mkdir()
        unpacker = Unpacker(str(root))
        for start in range(0, len(archive), size):
            unpacker.feed(archive[start : start + size])
        unpacker.close()
        assert (root / long).read_bytes() == b"x" * 1000 and os.readlink(root / "l") == long[:90]


def test_a_broken_archive_is_told_and_never_more(tmp_path):
    """Bytes changed at random: it is unpacked inside, or refused, and nothing else happens."""
    chance = random.Random(3)
    whole = tar(member("a", data=b"x" * 700), member("n" * 150, data=b"y"), member("l", LINK, target="a"))
    whole += tar(member("é" * 100, data=b"z"), form=tarfile.PAX_FORMAT)
    for number in range(300):
        root = tmp_path / "t" / str(number)
        root.mkdir(parents=True)
        broken = bytearray(whole)
        for _ in range(chance.randint(1, 6)):
            broken[chance.randrange(len(broken))] = chance.randrange(256)
        unpacker = Unpacker(str(root))
        try:
            unpacker.feed(bytes(broken))
            unpacker.close()
        except (InvalidArchive, OSError) as error:
            assert not isinstance(error, OSError) or error.errno in (errno.ENAMETOOLONG, errno.EINVAL)
    assert os.listdir(tmp_path) == ["t"]


def pax(records, size=None):
    info = tarfile.TarInfo("x")
    info.type, info.size = tarfile.XHDTYPE, len(records) if size is None else size
    return info.tobuf(tarfile.GNU_FORMAT) + records + bytes(-len(records) % 512)


@pytest.mark.parametrize(
    "start",
    [
        pax(b"0 path=x\n"),
        pax(b"3 =\n"),
        pax(b"99 path=x\n"),
        pax(b"-5 path=x\n"),
        pax(b"path"),
        pax(b"", size=8 << 30),
        pax(b"12 size=-99\n") + tar(member("a", data=b"x")),
        b"rubbish" * 100,
    ],
)
def test_a_header_that_lies_is_refused_at_once(tmp_path, start):
    with pytest.raises(InvalidArchive):
        Unpacker(str(tmp_path)).feed(start)
    assert os.listdir(tmp_path) == []


def test_memory_stays_flat_whatever_an_archive_says(tmp_path):
    """Extended headers without end, and a large file, cost no more than a piece."""
    many = b"".join(b"%d k%d=v\n" % (len(b"10 k%d=v\n" % n), n) for n in range(10_000, 14_000))
    heading, data = pax(many), bytes(1 << 20)
    unpacker = Unpacker(str(tmp_path), most_bytes=(40 << 20) + 8 * len(heading))
    large = member("large")[0]
    large.size = 40 << 20
    tracemalloc.start()
    unpacker.feed(heading + large.tobuf())
    for number in range(40):
        assert unpacker.bytes == number << 20
        unpacker.feed(data)
    assert (tmp_path / "large").stat().st_size == 40 << 20
    with pytest.raises(InvalidArchive, match="more than"):
        for _ in range(8):
            unpacker.feed(heading)
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()


def test_an_archive_that_breaks_off_leaves_nothing(its, shelf, tmp_path):
    shelf.files[b"r/a"] = b""
    shelf.archive = tar(member("a", data=b"x" * 5000))
    shelf.cuts = [3000]
    with pytest.raises((ConnectionLost, InvalidArchive)):
        its("download", "r", tmp_path / "r")
    shelf.archive = shelf.archive[:3000]
    with pytest.raises(InvalidArchive, match="breaks off"):
        its("download", "r", tmp_path / "r")
    shelf.archive = tar(member("a", data=b"x" * 5000))
    with pytest.raises(InvalidArchive, match="more than"):
        its("download", "r", tmp_path / "r", max_bytes=5000)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("what", ["r", "r/a"])
def test_a_download_that_is_given_up_leaves_nothing(shelf, tmp_path, what):
    """A task that is cancelled, and Ctrl-C."""
    shelf.files[b"r/a"] = bytes(3 << 20)
    shelf.archive = tar(member("a", data=bytes(3 << 20)))

    async def cancelled():
        async with AsyncSandboxClient.attach("s1", url=shelf.url, api_key=KEY) as sandbox:
            work = sandbox.download(what, tmp_path / "x", progress=lambda *_: task.cancel())
            task = asyncio.ensure_future(work)
            await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancelled())

    def interrupt(*_):
        raise KeyboardInterrupt

    with SandboxClient.attach("s1", url=shelf.url, api_key=KEY) as sandbox, pytest.raises(KeyboardInterrupt):
        sandbox.download(what, tmp_path / "x", progress=interrupt)
    assert os.listdir(tmp_path) == []


def test_a_workspace_is_downloaded_without_a_session(its, shelf, tmp_path):
    shelf.archive = tar(member("a", data=b"kept"))
    shelf.script["/v1/workspaces/ada/files/archive"] = []
    with pytest.raises(InvalidArchive):
        its("download_workspace", "ada", tmp_path / "ada")
    assert shelf.sent[-1].route == "/v1/workspaces/ada/files/archive"


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask
