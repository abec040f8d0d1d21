"""The few system calls that Python offers not at all, or only for all threads of a process at once."""

from __future__ import annotations

import os
from functools import lru_cache
from typing import Callable

_NUMBERS = {
    "x86_64": {"setgroups": 116, "setresuid": 117, "setresgid": 119, "renameat2": 316},
    "aarch64": {"setgroups": 159, "setresuid": 147, "setresgid": 149, "renameat2": 276},
    "riscv64": {"setgroups": 159, "setresuid": 147, "setresgid": 149, "renameat2": 276},
}


def call(name: str, *arguments: int | bytes) -> None:
    """Raises OSError as the functions of `os` do."""
    _syscall()(name, arguments)


@lru_cache(maxsize=None)
def _syscall() -> Callable[[str, tuple[int | bytes, ...]], None]:
    # Not with the module: it takes memory of every sandbox, and most never need it.
    import ctypes

    numbers = _NUMBERS[os.uname().machine]
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    syscall.restype = ctypes.c_long

    def make(name: str, arguments: tuple[int | bytes, ...]) -> None:
        given = [ctypes.c_long(one) if isinstance(one, int) else ctypes.c_char_p(one) for one in arguments]
        if syscall(ctypes.c_long(numbers[name]), *given) < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    return make
