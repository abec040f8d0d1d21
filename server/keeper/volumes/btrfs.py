"""What we ask of btrfs, by ioctl: subvolumes, snapshots, quota groups. Its command line costs milliseconds.

A quota group is `level/number`. Groups of level 0 belong to subvolumes; ours are 1/volume inside 2/tenant.
"""

from __future__ import annotations

import array
import errno
import fcntl
import os
import struct
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_WRITE, _READ = 1, 2
_NAME = 4040
_LIMITS_REFERENCED = 1
_INHERITS = 1 << 2
_READ_ONLY = 1 << 1
_QUOTA_TREE, _INFO = 8, 242
_TREE_OF_ROOTS, _ROOT_ITEM = 1, 132
_LAST = (1 << 64) - 1
_ENABLE_FULL, _ENABLE_SIMPLE = 1, 4
_SEARCH = struct.Struct("7Q4I4Q")
_FOUND = struct.Struct("QQQII")
_FIRST_SUBVOLUME, _LAST_SUBVOLUME = 256, _LAST - 255


def _ioctl(direction: int, number: int, size: int) -> int:
    return direction << 30 | size << 16 | 0x94 << 8 | number


_SYNC = _ioctl(0, 8, 0)
_SNAP_DESTROY = _ioctl(_WRITE, 15, 4096)
_TREE_SEARCH = _ioctl(_READ | _WRITE, 17, 4096)
_SNAP_CREATE = _ioctl(_WRITE, 23, 4096)
_SUBVOL_CREATE = _ioctl(_WRITE, 24, 4096)
_FS_INFO = _ioctl(_READ, 31, 1024)
_QUOTA_CTL = _ioctl(_READ | _WRITE, 40, 16)
_QGROUP_ASSIGN = _ioctl(_WRITE, 41, 24)
_QGROUP_CREATE = _ioctl(_WRITE, 42, 16)
_QGROUP_LIMIT = _ioctl(_READ, 43, 48)


def group(level: int, number: int) -> int:
    return level << 48 | number


def enable_quotas(root: int) -> str:
    """`simple` where the kernel (from 6.7 on) has them, else `full`: dear when copies are deleted."""
    try:
        fcntl.ioctl(root, _QUOTA_CTL, struct.pack("QQ", _ENABLE_SIMPLE, 0))
        return "simple"
    except OSError as exc:
        if exc.errno == errno.EEXIST:
            return "simple"
        if exc.errno not in (errno.EINVAL, errno.ENOTTY):
            raise
    try:
        fcntl.ioctl(root, _QUOTA_CTL, struct.pack("QQ", _ENABLE_FULL, 0))
    except OSError as exc:
        if exc.errno != errno.EEXIST:
            raise
    return "full"


def create(parent: int, name: str, inherits: int) -> None:
    """A new subvolume whose group is in the group `inherits`."""
    with _arguments(name, inherits) as arguments:
        fcntl.ioctl(parent, _SUBVOL_CREATE, arguments)


def snapshot(source: int, parent: int, name: str, inherits: int, read_only: bool) -> None:
    flags = _READ_ONLY if read_only else 0
    with _arguments(name, inherits, source, flags) as arguments:
        fcntl.ioctl(parent, _SNAP_CREATE, arguments)


def destroy(parent: int, name: str) -> None:
    """Gone for everybody at once; its blocks are freed in the background."""
    fcntl.ioctl(parent, _SNAP_DESTROY, bytearray(struct.pack("q4088s", 0, name.encode())))


def create_group(root: int, number: int) -> None:
    _unless(errno.EEXIST, root, _QGROUP_CREATE, struct.pack("QQ", 1, number))


def remove_group(root: int, number: int) -> bool:
    """Whether it could be removed: one that still accounts for something stays."""
    try:
        _unless(errno.ENOENT, root, _QGROUP_CREATE, struct.pack("QQ", 0, number))
    except OSError as exc:
        if exc.errno != errno.EBUSY:
            raise
        return False
    return True


def put_into(root: int, member: int, parent: int) -> None:
    _unless(errno.EEXIST, root, _QGROUP_ASSIGN, struct.pack("QQQ", 1, member, parent))


def limit(root: int, number: int, most: int) -> None:
    fcntl.ioctl(root, _QGROUP_LIMIT, struct.pack("6Q", number, _LIMITS_REFERENCED, most, 0, 0, 0))


def settle(root: int) -> None:
    """Write out what is pending, so that what was freed is accounted for."""
    fcntl.ioctl(root, _SYNC)


def used(filesystem: str, number: int) -> int | None:
    """Bytes that a group accounts for, what waits to be written included; None if there is no such group.

    What was deleted counts until the kernel's next commit.
    """
    place = f"/sys/fs/btrfs/{filesystem}/qgroups/{number >> 48}_{number & (1 << 48) - 1}"
    try:
        return _number_in(f"{place}/referenced") + _number_in(f"{place}/rsv_data")
    except FileNotFoundError:
        return None


def _number_in(file: str) -> int:
    fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return int(os.read(fd, 32))
    finally:
        os.close(fd)


def filesystem_id(root: int) -> str:
    told = bytearray(1024)
    fcntl.ioctl(root, _FS_INFO, told)
    return str(uuid.UUID(bytes=bytes(told[16:32])))


def groups(root: int) -> dict[int, int]:
    """Every group with what it accounts for."""
    found = _items(root, _QUOTA_TREE, (0, _INFO, 0), (0, _INFO, _LAST))
    return {offset: struct.unpack_from("QQ", item)[1] for (_, _, offset), item in found}


def subvolumes(root: int) -> set[int]:
    """The numbers of all, also of those that are deleted and not yet freed."""
    first, last = (_FIRST_SUBVOLUME, _ROOT_ITEM, 0), (_LAST_SUBVOLUME, _ROOT_ITEM, _LAST)
    return {
        number for (number, kind, _), _ in _items(root, _TREE_OF_ROOTS, first, last) if kind == _ROOT_ITEM
    }


@contextmanager
def opened(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def _arguments(name: str, inherits: int, source: int = 0, flags: int = 0) -> Iterator[bytearray]:
    """`btrfs_ioctl_vol_args_v2`; it points to the list of groups, which must stay where it is meanwhile."""
    groups = array.array("Q", [0, 1, 0, 0, 0, 0, 0, 0, 0, inherits])
    place, count = groups.buffer_info()
    size = count * groups.itemsize
    packed = struct.pack(f"qQQQQQQ{_NAME}s", source, 0, flags | _INHERITS, size, place, 0, 0, name.encode())
    yield bytearray(packed)


def _unless(accepted: int, root: int, request: int, arguments: bytes) -> None:
    try:
        fcntl.ioctl(root, request, arguments)
    except OSError as exc:
        if exc.errno != accepted:
            raise


_Key = tuple[int, int, int]


def _items(root: int, tree: int, first: _Key, last: _Key) -> Iterator[tuple[_Key, bytes]]:
    """Items of a tree, in the order of their keys, with keys between these two."""
    while True:
        buffer = bytearray(4096)
        (objectid, kind, offset), (last_object, last_kind, last_offset) = first, last
        _SEARCH.pack_into(
            buffer,
            0,
            tree,
            objectid,
            last_object,
            offset,
            last_offset,
            0,
            _LAST,
            kind,
            last_kind,
            4096,
            0,
            *[0] * 4,
        )
        fcntl.ioctl(root, _TREE_SEARCH, buffer)
        count = _SEARCH.unpack_from(buffer)[9]
        if not count:
            return
        at = _SEARCH.size
        for _ in range(count):
            _, objectid, offset, kind, size = _FOUND.unpack_from(buffer, at)
            at += _FOUND.size
            yield (objectid, kind, offset), bytes(buffer[at : at + size])
            at += size
        if (objectid, kind, offset) >= last:
            return
        first = _after((objectid, kind, offset))


def _after(key: _Key) -> _Key:
    objectid, kind, offset = key
    if offset < _LAST:
        return objectid, kind, offset + 1
    return (objectid, kind + 1, 0) if kind < 255 else (objectid + 1, 0, 0)
