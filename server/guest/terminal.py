"""A terminal for a command: opened by the command's own process, so that it belongs to its user."""

from __future__ import annotations

import array
import errno
import fcntl
import os
import socket
import struct
import termios

_IUTF8 = 0x4000  # backspace removes whole characters; the termios module does not name it
_SECONDS = 5.0  # it was sent before the program started, or never will be
_SIZE = struct.Struct("HHHH")


def take(channel: socket.socket, cols: int, rows: int) -> None:
    """In the child, as its user: make a terminal the process's own, and hand its other end to the guest."""
    master, slave = os.openpty()
    resize(slave, cols, rows)
    settings = termios.tcgetattr(slave)
    settings[0] |= _IUTF8
    termios.tcsetattr(slave, termios.TCSANOW, settings)
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
    for standard in (0, 1, 2):
        os.dup2(slave, standard)
    channel.sendmsg([b"t"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [master]))])


def receive(channel: socket.socket) -> int:
    """In the guest: the end that `take` sent, ready when its process has started. OSError if there is none:
    its user may have killed that process before it came to sending."""
    channel.settimeout(_SECONDS)
    _, ancillary, _, _ = channel.recvmsg(1, socket.CMSG_SPACE(4))
    if not ancillary:
        raise OSError(errno.EIO, "no terminal came")
    master: int = struct.unpack("i", ancillary[0][2][:4])[0]
    os.set_inheritable(master, False)
    os.set_blocking(master, False)
    return master


def resize(fd: int, cols: int, rows: int) -> None:
    fcntl.ioctl(fd, termios.TIOCSWINSZ, _SIZE.pack(rows, cols, 0, 0))
