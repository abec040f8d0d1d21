"""Where members of an archive land: below one directory, whatever they are called and whatever is there.

Each name is walked from descriptor to descriptor, and no link is followed on the way: neither one that was in
the archive nor one that a program puts there meanwhile.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import Callable, Iterator

from ..drafts import Draft, fresh_name
from ..paths import Spot
from .members import Member

_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_HELD = 256
_LATEST = 1 << 33  # seconds; what lies behind is nonsense to most programs
_REASONS = {
    errno.EACCES: "permission_denied",
    errno.EPERM: "permission_denied",
    errno.EROFS: "permission_denied",
    errno.ETXTBSY: "permission_denied",
    errno.ENAMETOOLONG: "invalid_name",
    errno.EINVAL: "invalid_name",
    errno.EILSEQ: "invalid_name",
    errno.ELOOP: "link",
    errno.EXDEV: "link",
    errno.EMLINK: "link",
    errno.ENOTDIR: "exists",
    errno.EISDIR: "exists",
    errno.EEXIST: "exists",
    errno.ENOTEMPTY: "exists",
    errno.ENOENT: "gone",
}


class Skipped(Exception):
    """The member was not unpacked; `reason` is a word of ours."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Landing:
    def __init__(self, base: int) -> None:
        self.files = self.directories = self.bytes = 0
        self._base = base
        # The way to where the last member landed: the next one is near, most often. Only its end is open.
        self._names: list[bytes] = []
        self._fds: list[int] = []

    def put(self, member: Member, content: Iterator[bytes]) -> None:
        ways = {
            "file": self._file,
            "directory": self._directory,
            "symlink": self._symlink,
            "hardlink": self._hardlink,
        }
        parts = parts_of(member.name)
        if member.kind not in ways:
            raise Skipped(member.kind)
        if not parts and member.kind == "directory":
            return  # the one below which all is unpacked
        if not parts:
            raise Skipped("invalid_name")
        try:
            ways[member.kind](self._reach(parts[:-1]), parts[-1], member, content)
        except OSError as exc:
            if exc.errno not in _REASONS:
                raise
            raise Skipped(_REASONS[exc.errno]) from exc

    def close(self) -> None:
        self._leave(0)

    def _file(self, place: int, name: bytes, member: Member, content: Iterator[bytes]) -> None:
        """Under its name when it is whole: whoever is killed meanwhile leaves nothing behind."""
        when = min(max(0, member.mtime), _LATEST)
        with Draft(Spot(place, b"", name)) as draft:
            for piece in content:
                draft.write(piece)
                self.bytes += len(piece)
            os.utime(draft.fd, (when, when))
            try:
                draft.publish(member.mode, replace=False)
            except FileExistsError:
                _not_a_directory(place, name)
                draft.publish(member.mode, replace=True)
        self.files += 1

    def _directory(self, place: int, name: bytes, member: Member, _: Iterator[bytes]) -> None:
        """Its owner may always enter and write it: more is to land there."""
        mode = member.mode | 0o700
        try:
            os.mkdir(name, mode, dir_fd=place)
        except FileExistsError:
            if stat.S_ISDIR(os.stat(name, dir_fd=place, follow_symlinks=False).st_mode):
                return
            os.unlink(name, dir_fd=place)
            os.mkdir(name, mode, dir_fd=place)
        self.directories += 1

    def _symlink(self, place: int, name: bytes, member: Member, _: Iterator[bytes]) -> None:
        if not member.target or b"\0" in member.target:
            raise Skipped("invalid_name")
        _replacing(place, name, lambda new: os.symlink(member.target, new, dir_fd=place))
        self.files += 1

    def _hardlink(self, place: int, name: bytes, member: Member, _: Iterator[bytes]) -> None:
        """To a file that lies below the same directory, and not at the end of a link."""
        parts = parts_of(member.target)
        if not parts:
            raise Skipped("link")
        source = _walk(self._base, parts[:-1])
        try:
            if not stat.S_ISREG(os.stat(parts[-1], dir_fd=source, follow_symlinks=False).st_mode):
                raise Skipped("link")
            ways = {"src_dir_fd": source, "dst_dir_fd": place, "follow_symlinks": False}
            _replacing(place, name, lambda new: os.link(parts[-1], new, **ways))  # type: ignore[arg-type]
        finally:
            os.close(source)
        self.files += 1

    def _reach(self, parts: list[bytes]) -> int:
        """The directory of that path, made where it is missing."""
        common = _common(self._names, parts)
        self._leave(common)
        if common and not self._fds:  # so far up that it was closed
            self._leave(0)
            common = 0
        here = self._fds[-1] if self._fds else self._base
        for name in parts[common:]:
            here, made = step(here, name)
            self.directories += made
            self._names.append(name)
            self._fds.append(here)
            if len(self._fds) > _MOST_HELD:
                os.close(self._fds.pop(0))
        return here

    def _leave(self, depth: int) -> None:
        while len(self._names) > depth:
            self._names.pop()
            if self._fds:
                os.close(self._fds.pop())


def parts_of(name: bytes) -> list[bytes]:
    """What leads outside by its own words is not followed a step."""
    parts = [part for part in name.split(b"/") if part not in (b"", b".")]
    if name.startswith(b"/") or b".." in parts:
        raise Skipped("outside")
    if b"\0" in name:
        raise Skipped("invalid_name")
    return parts


def step(here: int, name: bytes) -> tuple[int, bool]:
    """The directory of that name, and whether it had to be made."""
    made = False
    try:
        os.mkdir(name, 0o755, dir_fd=here)
        made = True
    except FileExistsError:
        pass
    return _enter(here, name), made


def _enter(here: int, name: bytes) -> int:
    try:
        return os.open(name, _DIRECTORY, dir_fd=here)
    except NotADirectoryError as exc:
        mode = os.stat(name, dir_fd=here, follow_symlinks=False).st_mode
        raise Skipped("link" if stat.S_ISLNK(mode) else "exists") from exc


def _walk(base: int, parts: list[bytes]) -> int:
    here = os.dup(base)
    for name in parts:
        above = here
        try:
            here = _enter(above, name)
        finally:
            os.close(above)
    return here


def _common(one: list[bytes], other: list[bytes]) -> int:
    shorter = min(len(one), len(other))
    if one[:shorter] == other[:shorter]:
        return shorter
    return next(at for at in range(shorter) if one[at] != other[at])


def _replacing(place: int, name: bytes, make: Callable[[bytes], None]) -> None:
    """Make something in place of whatever has its name, as long as that is no directory."""
    try:
        make(name)
    except FileExistsError:
        _not_a_directory(place, name)
        new = fresh_name()
        make(new)
        try:
            os.rename(new, name, src_dir_fd=place, dst_dir_fd=place)
        finally:
            _remove(place, new)  # also when both were the same file: then a rename does nothing


def _remove(place: int, name: bytes) -> None:
    try:
        os.unlink(name, dir_fd=place)
    except FileNotFoundError:
        return


def _not_a_directory(place: int, name: bytes) -> None:
    if stat.S_ISDIR(os.stat(name, dir_fd=place, follow_symlinks=False).st_mode):
        raise Skipped("exists")
