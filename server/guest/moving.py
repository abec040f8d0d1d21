"""Moving, copying and deleting. Trees are the business of cp and rm, run as the user."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from contextlib import ExitStack, contextmanager
from typing import Iterator

from . import entries, programs
from .drafts import Draft, fresh_name
from .files import Files, named
from .paths import Spot, opened, reopened, spotted
from .protocol import Head
from .refused import Refused, refusal_of
from .syscalls import call

_LONGEST = 120.0
_NOREPLACE = 1
_UNKNOWN = (errno.EINVAL, errno.ENOSYS, errno.EPERM)
_BLOCK = 512  # bytes, whatever the filesystem's own are
_STEP = 32 << 20
_NO_RANGE = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM)
# What, once it is reached, is wrong with the destination and not with the source.
_ITS_OWN = {"already_exists", "directory_not_empty", "is_directory", "not_a_directory", "disk_full"}
_COPY = [b"cp", b"-a", b"--reflink=auto", b"-T", b"--"]
_REMOVE = [b"rm", b"-rf", b"--one-file-system", b"--"]


def move(files: Files, head: Head) -> Head:
    """A link is moved itself. To another filesystem it is copied, put in place at once, and then removed."""
    overwrite, target = head["overwrite"] is True, named(head, "destination")
    with ExitStack() as stack:
        with files.touched():
            source = stack.enter_context(spotted(files.roots, named(head, "source"), follow=False))
            os.stat(source.name, dir_fd=source.directory, follow_symlinks=False)
            with _destination(files, target, follow=False) as spot:
                try:
                    _rename(source, spot, overwrite)
                    return {"ok": True, "entry": entries.of_spot(spot)}
                except OSError as exc:
                    if exc.errno != errno.EXDEV:
                        raise
        answer = _copy_tree(files, source.path, target, overwrite)
        _remove(files, source)
        return answer


def copy(files: Files, head: Head) -> Head:
    """A link is followed; those within a directory are copied as links."""
    overwrite, target = head["overwrite"] is True, named(head, "destination")
    with files.touched(), opened(files.roots, named(head, "source")) as place:
        about, source = os.fstat(place.fd), place.path
        if not stat.S_ISDIR(about.st_mode):
            entries.must_be_file(about)
            if head["room"] is not None and about.st_blocks * _BLOCK > head["room"]:
                raise Refused("disk_full")
            file = reopened(place, os.O_RDONLY)
            try:
                return _copy_file(files, file, target, overwrite)
            finally:
                os.close(file)
    if head["recursive"] is not True:
        raise Refused("is_directory")
    return _copy_tree(files, source, target, overwrite)


def delete(files: Files, head: Head) -> Head:
    with ExitStack() as stack:
        with files.touched():
            spot = stack.enter_context(spotted(files.roots, named(head), follow=False))
            about = os.stat(spot.name, dir_fd=spot.directory, follow_symlinks=False)
            if not stat.S_ISDIR(about.st_mode):
                os.unlink(spot.name, dir_fd=spot.directory)
                return {"ok": True}
            try:
                os.rmdir(spot.name, dir_fd=spot.directory)
                return {"ok": True}
            except OSError as exc:
                if exc.errno != errno.ENOTEMPTY or head["recursive"] is not True:
                    raise
        _remove(files, spot)
    return {"ok": True}


@contextmanager
def _destination(files: Files, path: bytes, follow: bool) -> Iterator[Spot]:
    """What goes wrong on the way there, or with what is there, is told to be about it."""
    reached = False
    try:
        with spotted(files.roots, path, follow=follow) as spot:
            reached = True
            yield spot
    except (OSError, Refused) as exc:
        refusal = refusal_of(exc) if isinstance(exc, OSError) else exc
        if reached and refusal.code not in _ITS_OWN:
            raise
        refusal.facts["destination"] = True
        if refusal is exc:
            raise
        raise refusal from exc


def _copy_file(files: Files, file: int, target: bytes, overwrite: bool) -> Head:
    deadline = time.monotonic() + _LONGEST
    with _destination(files, target, follow=True) as spot:
        there = entries.status_of(spot)
        if there is not None and not overwrite:
            raise Refused("already_exists")
        with Draft(spot) as draft:
            while _pump(file, draft.fd):
                if time.monotonic() > deadline:
                    raise Refused("operation_timeout")
            about = draft.publish(stat.S_IMODE(os.fstat(file).st_mode) & 0o777, overwrite)
        return {"ok": True, "entry": entries.facts(spot.path, about)}


def _pump(source: int, target: int) -> int:
    """Some bytes further; where the filesystem can, they are shared rather than copied."""
    try:
        return os.copy_file_range(source, target, _STEP)
    except OSError as exc:
        if exc.errno not in _NO_RANGE:
            raise
        data = os.read(source, 1 << 20)
        view = memoryview(data)
        while view:
            view = view[os.write(target, view) :]
        return len(data)


def _copy_tree(files: Files, source: bytes, path: bytes, overwrite: bool) -> Head:
    """Under a name of its own, which becomes the real one when it is whole."""
    with ExitStack() as stack:
        with files.touched():
            target = stack.enter_context(_destination(files, path, follow=False))
            if not overwrite and entries.status_of(target) is not None:
                raise Refused("already_exists")
        if (target.inside + b"/").startswith(source + b"/"):
            raise Refused("invalid_path")  # into itself
        copied = target._replace(name=fresh_name())
        try:
            programs.run(files.ground, [*_COPY, source, b"./" + copied.name], _as_cwd(target), _LONGEST)
            with files.touched():
                _rename(copied, target, overwrite)
                return {"ok": True, "entry": entries.of_spot(target)}
        except Refused:
            with contextlib.suppress(Refused):
                _remove(files, copied)
            raise


def _remove(files: Files, spot: Spot) -> None:
    programs.run(files.ground, [*_REMOVE, b"./" + spot.name], _as_cwd(spot), _LONGEST)


def _as_cwd(spot: Spot) -> str:
    """Entered by the child before it becomes the program: so no path is too long to be entered."""
    return f"/proc/self/fd/{spot.directory}"


def _rename(source: Spot, target: Spot, overwrite: bool) -> None:
    if not overwrite:
        try:
            call("renameat2", source.directory, source.name, target.directory, target.name, _NOREPLACE)
            return
        except OSError as exc:
            if exc.errno not in _UNKNOWN:
                raise
        if entries.status_of(target) is not None:  # where the filesystem cannot do both at once
            raise Refused("already_exists")
    os.rename(source.name, target.name, src_dir_fd=source.directory, dst_dir_fd=target.directory)
