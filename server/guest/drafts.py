"""Files in the making: nobody sees them before they are whole, and nothing stays of those that never are."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
from types import TracebackType

from .paths import Spot

_FRESH = re.compile(rb"\.sandbox-[0-9a-f]{16}")
_NO_NAMELESS = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT)


class Draft:
    """A file without a name, in the directory where it shall be; where there is no such thing, a hidden one.

    Without a name it is gone whatever happens, also to the guest itself.
    """

    def __init__(self, spot: Spot) -> None:
        self._spot = spot
        self._name: bytes | None = None
        flags = os.O_RDWR | os.O_CLOEXEC
        try:
            self.fd = os.open(b".", flags | os.O_TMPFILE, 0o600, dir_fd=spot.directory)
        except OSError as exc:
            if exc.errno not in _NO_NAMELESS:
                raise
            name = fresh_name()
            self.fd = os.open(
                name, flags | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=spot.directory
            )
            self._name = name

    def __enter__(self) -> Draft:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self.fd)
        if self._name is not None:
            with contextlib.suppress(OSError):
                os.unlink(self._name, dir_fd=self._spot.directory)

    def write(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self.fd, view) :]

    def publish(self, mode: int, replace: bool) -> os.stat_result:
        """Give it its name, at once and as a whole. Without `replace`, FileExistsError if that is taken.

        Only what replaces something is renamed: so those who watch can tell it from what is new.
        """
        os.fchmod(self.fd, mode)
        try:
            self._link(self._spot.name)
        except FileExistsError:
            if not replace:
                raise
            self._replace()
        return os.fstat(self.fd)

    def _replace(self) -> None:
        if self._name is None:
            name = fresh_name()
            self._link(name)
            self._name = name
        directory = self._spot.directory
        os.rename(self._name, self._spot.name, src_dir_fd=directory, dst_dir_fd=directory)
        self._name = None

    def _link(self, name: bytes) -> None:
        source = b"/proc/self/fd/%d" % self.fd
        os.link(source, name, dst_dir_fd=self._spot.directory, follow_symlinks=True)


def fresh_name() -> bytes:
    return b".sandbox-" + secrets.token_hex(8).encode()


def is_fresh_name(name: bytes) -> bool:
    return _FRESH.fullmatch(name) is not None
