"""Runs inside a sandbox, as its user: what does the wall look like from here? Prints one JSON object."""

import contextlib
import ctypes
import errno
import json
import os
import resource
import socket
import sys

libc = ctypes.CDLL(None, use_errno=True)
IO_URING_SETUP = 425
AF_VSOCK = 40
CLONE_NEWUSER = 0x10000000
PR_GET_NO_NEW_PRIVS = 39


def status(name):
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith(name + ":"):
                return line.split()[1]
    return None


def cgroup(v2, v1):
    for path in (f"/sys/fs/cgroup/{v2}", f"/sys/fs/cgroup/{v1}"):
        try:
            with open(path) as file:
                return file.read().split()
        except OSError:
            continue
    return []


def number(words):
    return int(words[0]) if words and words[0].isdigit() else None


def cpu_quota():
    quota = cgroup("cpu.max", "cpu/cpu.cfs_quota_us")
    period = quota[1:] or cgroup("-", "cpu/cpu.cfs_period_us")
    return int(quota[0]) / int(period[0]) if quota and period and quota[0].lstrip("-").isdigit() else None


def refused(call, *codes):
    try:
        result = call()
    except OSError as exc:
        code = exc.errno
    else:
        if result is None or result >= 0:
            return "allowed"
        code = ctypes.get_errno()
    return (
        "refused" if code in (codes or (errno.EPERM, errno.EACCES)) else errno.errorcode.get(code, str(code))
    )


def root_filesystem():
    return "read-only" if os.statvfs("/").f_flag & os.ST_RDONLY else "writable"


def kernel_symbols():
    try:
        with open("/proc/kallsyms") as file:
            return "visible" if file.read(1) else "hidden"
    except OSError:
        return "hidden"


def disk_limit():
    """Room is asked for, not filled: two files of more than half of the limit each."""
    limit, names = int(sys.argv[1]), ("/workspace/.half", "/workspace/.other")
    try:
        for name in names:
            with open(name, "wb") as file:
                os.posix_fallocate(file.fileno(), 0, limit * 6 // 10)
        return "not enforced"
    except OSError as exc:
        full = exc.errno in (errno.EDQUOT, errno.ENOSPC)
        return "enforced" if full else errno.errorcode.get(exc.errno, "failed")
    finally:
        for name in names:
            with contextlib.suppress(OSError):
                os.unlink(name)


def read_guest_memory():
    with open("/proc/1/mem", "rb") as file:
        file.read(1)


print(
    json.dumps(
        {
            "uid is the session's own": 20000 <= os.getuid() <= 24095
            and os.getgroups() in ([], [os.getgid()]),
            "effective capabilities": int(status("CapEff") or "1", 16),
            "no new privileges": libc.prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0),
            "seccomp mode": int(status("Seccomp") or 0),
            "network interfaces": [name for _, name in socket.if_nameindex()],
            "root filesystem": root_filesystem(),
            "memory limit": number(cgroup("memory.max", "memory/memory.limit_in_bytes")),
            "process limit of the container": number(cgroup("pids.max", "pids/pids.max")),
            "process limit of the user": resource.getrlimit(resource.RLIMIT_NPROC)[1],
            "cpu quota": cpu_quota(),
            "open files": resource.getrlimit(resource.RLIMIT_NOFILE)[1],
            "core files": resource.getrlimit(resource.RLIMIT_CORE)[1],
            "largest file": resource.getrlimit(resource.RLIMIT_FSIZE)[1],
            "io_uring": refused(lambda: libc.syscall(IO_URING_SETUP, 1, None), errno.EPERM, errno.ENOSYS),
            "vsock": refused(
                lambda: libc.socket(AF_VSOCK, socket.SOCK_STREAM, 0),
                errno.EPERM,
                errno.EACCES,
                errno.EAFNOSUPPORT,
            ),
            "new user namespace": refused(lambda: libc.unshare(CLONE_NEWUSER)),
            "signal to the guest": refused(lambda: os.kill(1, 0)),
            "memory of the guest": refused(read_guest_memory),
            "socket of the guest": refused(lambda: os.listdir("/run/sandbox") and None),
            "kernel symbols": kernel_symbols(),
            "disk limit": disk_limit(),
        }
    )
)
