"""Knock on every door of the kernel from inside a sandbox and print what answered, as one JSON object.

Runs as the sandbox's ordinary user, with the standard library only: `python3 - < kernel_surface.py`. The
keys are attack ids; each value maps one attempt to an errno's name, a signal's name, or what was really
obtained. Every call that could change the caller is made in a forked child.
"""

import ctypes
import errno
import json
import mmap
import os
import platform
import shutil
import signal
import socket
import stat
import struct
import subprocess
import tempfile

LIBC = ctypes.CDLL(None, use_errno=True)
X86 = platform.machine() == "x86_64"

# name / number on x86-64 / number on aarch64; -1 where the architecture has no such call
SYSCALLS = """acct/163/89 add_key/248/217 adjtimex/159/171 bpf/321/280 chroot/161/51 clock_adjtime/305/266
    clock_settime/227/112 clone/56/220 clone3/435/435 delete_module/176/106 finit_module/313/273
    fsconfig/431/431 fsmount/432/432 fsopen/430/430 fspick/433/433 init_module/175/105
    io_uring_enter/426/426 io_uring_register/427/427 io_uring_setup/425/425 ioperm/173/-1 iopl/172/-1
    kcmp/312/272 kexec_file_load/320/294 kexec_load/246/104 keyctl/250/219 lookup_dcookie/212/18
    mbind/237/235 memfd_secret/447/447 migrate_pages/256/238 modify_ldt/154/-1 mount/165/40
    mount_setattr/442/442 move_mount/429/429 move_pages/279/239 name_to_handle_at/303/264
    nfsservctl/180/42 open_by_handle_at/304/265 open_tree/428/428 perf_event_open/298/241
    pidfd_getfd/438/438 pivot_root/155/41 process_madvise/440/440 quotactl/179/60 quotactl_fd/443/443
    reboot/169/142 request_key/249/218 set_mempolicy/238/237 setdomainname/171/162 sethostname/170/161
    setns/308/268 settimeofday/164/170 swapoff/168/225 swapon/167/224 syslog/103/116 umount2/166/39
    unshare/272/97 userfaultfd/323/282 vhangup/153/58"""
MOUNTING = """chroot fsconfig fsmount fsopen fspick mount mount_setattr move_mount open_tree
    pivot_root setns umount2"""
CLONING = ("clone", "clone3", "unshare")
SETTING = ("settimeofday", "clock_settime", "adjtimex", "clock_adjtime", "sethostname", "setdomainname")
NAMESPACES = """mnt/0x20000 cgroup/0x2000000 uts/0x4000000 ipc/0x8000000 user/0x10000000 pid/0x20000000
    net/0x40000000 time/0x80"""
# name / family / type / protocol
SOCKETS = """inet-raw-icmp/2/3/1 inet-raw-tcp/2/3/6 inet-raw-raw/2/3/255 inet-raw-cloexec/2/524291/1
    inet-packet/2/10/768 inet6-raw/10/3/58 inet-sctp/2/1/132 inet-mptcp/2/1/262 inet-dccp/2/6/33
    ax25/3/5/0 ipx/4/2/0 appletalk/5/2/0 x25/9/5/0 key/15/3/2 packet-raw/17/3/768 packet-dgram/17/2/768
    rds/21/5/0 llc/26/2/0 can-raw/29/3/1 can-bcm/29/2/2 tipc/30/5/0 bluetooth/31/3/1 rxrpc/33/2/2
    phonet/35/2/0 alg/38/5/0 nfc/39/5/0 vsock-stream/40/1/0 vsock-dgram/40/2/0 kcm/41/2/0 qipcrtr/42/2/0
    smc/43/1/0 xdp/44/3/0 mctp/45/2/0"""
ALLOWED_SOCKETS = """unix-stream/1/1/0 unix-dgram/1/2/0 unix-seqpacket/1/5/0 inet-stream/2/1/0
    inet-tcp/2/1/6 inet-udp/2/2/17 inet6-stream/10/1/0 inet6-dgram/10/2/0 netlink-route/16/3/0"""
REFUSED_IOCTLS = """btrfs-SUBVOL_CREATE/0x5000940e btrfs-SNAP_CREATE_V2/0x50009417
    btrfs-TREE_SEARCH/0xd0009411 btrfs-QUOTA_CTL/0xc0109428 FIDEDUPERANGE/0xc0189436 TIOCSTI/0x5412
    TIOCLINUX/0x541c
    TIOCSETD/0x5423 FS_IOC_SETFLAGS/0x40086602 FS_IOC_FSSETXATTR/0x401c5820 SIOCBRADDBR/0x89a0
    SIOCSIFVLAN/0x8983 TIOCSTI-with-high-bits/0xdeadbeef00005412"""
CONTROL_FILES = """/proc/sys/kernel/core_pattern /proc/sys/kernel/modprobe /proc/sys/kernel/hostname
    /proc/sys/vm/drop_caches /proc/sys/fs/binfmt_misc/register /proc/sysrq-trigger
    /sys/kernel/uevent_helper /sys/power/state /sys/fs/cgroup/cgroup.procs
    /sys/fs/cgroup/devices/devices.allow /sys/fs/cgroup/devices/cgroup.procs
    /sys/fs/cgroup/devices/notify_on_release /sys/fs/cgroup/memory/release_agent
    /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory.max /sys/fs/cgroup/pids/pids.max"""
DEVICES = """mem kmem port kmsg kvm fuse vda sda nvme0n1 loop0 loop-control btrfs-control net/tun vhost-net
    vsock uinput userfaultfd mapper/control hpet snapshot console cpu/0/msr dri/card0"""
HOST_FACTS = """kallsyms cmdline config.gz interrupts softirqs locks diskstats partitions iomem ioports
    key-users keys kcore kmsg timer_list sched_debug bus fs irq driver scsi acpi pressure vmstat zoneinfo
    buddyinfo pagetypeinfo slabinfo vmallocinfo modules devices misc consoles crypto swaps mdstat
    sys/kernel/random/boot_id sys/fs/file-nr /sys/firmware /sys/kernel /sys/module /sys/power /sys/block
    /sys/bus /sys/dev /sys/class/block
    /sys/class/dmi/id /sys/devices/virtual/dmi /sys/devices/virtual/block /sys/fs/btrfs
    /sys/fs/ext4 /sys/fs/xfs /sys/devices/system/node/node0/meminfo
    /sys/devices/system/node/node0/vmstat /sys/devices/system/node/node0/numastat"""
OWN_FILES = (
    "/proc/self/environ /proc/self/cgroup /proc/self/mountinfo /etc/hostname /etc/hosts /etc/resolv.conf"
)
TARGETS = "1.1.1.1/53 169.254.169.254/80 172.17.0.1/5000 127.0.0.1/5000 2606:4700:4700::1111/53"
PRIVILEGES = ("NoNewPrivs", "Seccomp", "CapInh", "CapPrm", "CapEff", "CapAmb")


def table(text):
    """`name/1/2 other/3/4` as a dict of tuples of numbers."""
    rows = (item.split("/") for item in text.split())
    return {name: tuple(int(number, 0) for number in numbers) for name, *numbers in rows}


def name_of(number):
    return errno.errorcode.get(number, f"errno {number}")


def number_of(call):
    return table(SYSCALLS)[call][0 if X86 else 1]


def syscall_number(number, *arguments):
    ctypes.set_errno(0)
    result = LIBC.syscall(ctypes.c_long(number), *[ctypes.c_ulong(value) for value in arguments])
    return name_of(ctypes.get_errno()) if result == -1 else f"allowed ({result})"


def syscall(call, *arguments):
    number = number_of(call)
    return "no such call" if number < 0 else syscall_number(number, *(arguments or (0,) * 6))


def attempt(action, *arguments):
    try:
        return f"allowed ({action(*arguments)})"
    except OSError as error:
        return name_of(error.errno) if error.errno and error.errno > 0 else str(error)


def in_child(action, *arguments):
    """The action's answer, or the name of the signal that ended the child which asked."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writing, str(action(*arguments)).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer = pipe.read().decode()
    _, status = os.waitpid(pid, 0)
    return signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else answer


def clone(call, *arguments):
    pid = LIBC.syscall(ctypes.c_long(number_of(call)), *arguments)
    if pid == 0:
        os._exit(0)
    return name_of(ctypes.get_errno()) if pid == -1 else "allowed"


def clone3(flags):
    arguments = struct.pack("<11Q", flags, 0, 0, 0, signal.SIGCHLD, *[0] * 6)
    return clone("clone3", ctypes.create_string_buffer(arguments), ctypes.c_ulong(88))


def int_0x80():
    code = b"\xb8\x14\x00\x00\x00\xcd\x80\xc3"  # mov eax, 20 (getpid of i386); int 0x80; ret
    page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(code)
    function = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
    return f"allowed ({function()})"


def a25_ioctls():
    number, here = (16 if X86 else 29), os.open(".", os.O_RDONLY)
    return {name: syscall_number(number, here, code, 0) for name, (code,) in table(REFUSED_IOCTLS).items()}


def a70_dangerous_calls():
    names = table(SYSCALLS).keys() - {*MOUNTING.split(), *CLONING, *SETTING}
    return {name: in_child(syscall, name) for name in sorted(names)}


def a71_namespaces_and_mounts():
    answers = {name: in_child(syscall, name) for name in MOUNTING.split()}
    for name, (flag,) in table(NAMESPACES).items():
        answers[f"unshare {name}"] = in_child(syscall, "unshare", flag)
        answers[f"clone3 {name}"] = in_child(clone3, flag)
        if name != "time":  # its bit is part of the exit signal in clone
            answers[f"clone {name}"] = in_child(clone, "clone", ctypes.c_ulong(flag | signal.SIGCHLD), 0, 0)
    return answers


def a72_foreign_calls():
    if not X86:
        return {}
    getpid, ptrace = 0x40000000 + 39, 0x40000000 + 521
    x32 = {
        "x32 getpid": in_child(syscall_number, getpid),
        "x32 ptrace": in_child(syscall_number, ptrace, 0, 0, 0),
    }
    return {"int 0x80": in_child(int_0x80), **x32}


def a73_sockets():
    netlink = {f"netlink-{protocol}": (16, socket.SOCK_RAW, protocol) for protocol in range(1, 23)}
    refused = {**table(SOCKETS), **netlink}
    return {
        "refused": {name: attempt(socket.socket, *how) for name, how in refused.items()},
        "allowed": {name: attempt(socket.socket, *how) for name, how in table(ALLOWED_SOCKETS).items()},
    }


def output(*command):
    """What the command printed, or `refused` when it failed."""
    run = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=30)
    return run.stdout.decode().strip() if run.returncode == 0 else "refused"


def a74_privileges():
    with open("/proc/self/status", encoding="ascii") as status:
        fields = dict(line.rstrip("\n").split(":\t", 1) for line in status if ":\t" in line)
    with tempfile.TemporaryDirectory(dir=".") as folder:
        shell = shutil.copy("/bin/bash", folder)
        os.chmod(shell, 0o6755)
        own_shell = output(shell, "-p", "-c", "echo $EUID")
        capability = struct.pack("<5I", 0x02000001, 0xFFFFFFFF, 0, 0xFFFFFFFF, 0)
        caps = attempt(os.setxattr, shell, "security.capability", capability)
    return {
        **{name: fields.get(name) for name in PRIVILEGES},
        "uid": os.getuid(),
        "own setuid shell": own_shell,
        "file capability": caps,
        "su": output(shutil.which("su") or "false", "root", "-c", "id -u"),
        "setuid": attempt(os.setuid, 0),
        "setgroups": attempt(os.setgroups, [0]),
        "setuid files": output("sh", "-c", "find / -xdev -type f -perm /6000 2>/dev/null; true").split(),
    }


def is_writable(path):
    """A masked file is /dev/null in disguise: what is written there goes nowhere."""
    return os.access(path, os.W_OK) and not stat.S_ISCHR(os.stat(path).st_mode)


def writable_controls():
    found = []
    for top in ("/sys", "/proc"):
        for folder, folders, names in os.walk(top):
            folders[:] = [name for name in folders if folder != "/proc" or not name.isdigit()]
            found += [path for path in (folder, *(f"{folder}/{name}" for name in names)) if is_writable(path)]
    return found


def a75_control_files():
    answers = {path: attempt(os.open, path, os.O_WRONLY) for path in CONTROL_FILES.split()}
    answers["new cgroup"] = attempt(os.mkdir, "/sys/fs/cgroup/memory/x")
    return {"open for writing": answers, "writable": writable_controls()}


def a76_devices():
    nodes = {"disk": (stat.S_IFBLK, 254, 0), "memory": (stat.S_IFCHR, 1, 1), "whiteout": (stat.S_IFCHR, 0, 0)}
    answers = {f"open {name}": attempt(os.open, f"/dev/{name}", os.O_RDWR) for name in DEVICES.split()}
    with tempfile.TemporaryDirectory(dir=".") as folder:
        for name, (kind, major, minor) in nodes.items():
            node = os.path.join(folder, name)
            answers[f"mknod {name}"] = attempt(os.mknod, node, kind | 0o600, os.makedev(major, minor))
        fifo = attempt(os.mkfifo, os.path.join(folder, "fifo"))
    return {"refused": answers, "mkfifo": fifo, "listing": sorted(os.listdir("/dev"))}


def a77_clocks_and_names():
    now = ctypes.create_string_buffer(struct.pack("<2q", 1_700_000_000, 0))
    change = ctypes.create_string_buffer(struct.pack("<I4x25q", 0x8000 | 0x2000, *[0] * 25))
    name = ctypes.create_string_buffer(b"owned")
    here, there, text = ctypes.addressof(now), ctypes.addressof(change), ctypes.addressof(name)
    arguments = ((here, 0), (0, here), (there,), (0, there), (text, 5), (text, 5))
    return {call: syscall(call, *arguments[index]) for index, call in enumerate(SETTING)}


def connect(kind, host, port):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, kind) as link:
        link.settimeout(2)
        link.connect((host, port))
        link.send(b"x")


def a78_network():
    answers = {
        host: attempt(connect, socket.SOCK_STREAM, host, port) for host, (port,) in table(TARGETS).items()
    }
    answers["name server"] = attempt(connect, socket.SOCK_DGRAM, "1.1.1.1", 53)
    names = {name: attempt(socket.getaddrinfo, name, 80) for name in ("example.com", "host.docker.internal")}
    return {"connect": answers, "resolve": names, "interfaces": [name for _, name in socket.if_nameindex()]}


def content(path, limit=200):
    try:
        if os.path.isdir(path):
            return " ".join(sorted(os.listdir(path)))
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            return file.read(limit).decode("latin-1")
    except OSError as error:
        return name_of(error.errno)


def a80_host_facts():
    return {name: content(os.path.join("/proc", name)) for name in HOST_FACTS.split()}


def a81_identity():
    texts = {path: content(path, 1 << 20) for path in OWN_FILES.split()}
    return {"environment": dict(os.environ), "hostname": socket.gethostname(), "files": texts}


def main():
    calls = (a25_ioctls, a70_dangerous_calls, a71_namespaces_and_mounts, a72_foreign_calls, a73_sockets)
    rights = (a74_privileges, a75_control_files, a76_devices, a77_clocks_and_names)
    sights = (a78_network, a80_host_facts, a81_identity)
    print(json.dumps({probe.__name__[:3].upper(): probe() for probe in (*calls, *rights, *sights)}))


if __name__ == "__main__":
    main()
