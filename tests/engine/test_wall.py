"""The wall from inside a sandbox: the lines of docs/security.md that no other test proves."""

from __future__ import annotations

import json

from sandbox_client import SandboxClient
from stack import Stack, docker

WRITABLE = """
import os
mounts = {line.split()[4] for line in open("/proc/self/mountinfo")} | {"/etc", "/usr", "/opt", "/run", "/var"}
def can_write(place):
    name = os.path.join(place, "probe")
    try:
        open(name, "w").close()
        os.unlink(name)
        return True
    except OSError:
        return False
print(sorted(place for place in mounts if os.path.isdir(place) and can_write(place)))
"""

FLUSH = """
import ctypes, platform
libc = ctypes.CDLL(None, use_errno=True)
io_setup = {"x86_64": 206, "aarch64": 0}[platform.machine()]
print(libc.syncfs(1), libc.syscall(io_setup, 1, 0), ctypes.get_errno())
"""


def test_every_session_has_a_uid_of_its_own(stack: Stack, sandbox: SandboxClient) -> None:
    """Two live sessions are two users to the kernel, and both are called `user`."""
    with stack.client() as other:
        mine, theirs = (one.execute("id -u; id -un; id -G").stdout.split() for one in (sandbox, other))
    assert mine[0] != theirs[0]
    assert mine[1] == theirs[1] == "user"
    assert mine[2:] == mine[:1]


def test_only_four_places_can_be_written(sandbox: SandboxClient) -> None:
    result = sandbox.execute(["python3", "-c", WRITABLE], check=True)
    assert result.stdout.strip() == "['/dev/mqueue', '/dev/shm', '/tmp', '/workspace']"


def test_temporary_places_are_small(sandbox: SandboxClient) -> None:
    sizes = sandbox.execute("df --output=size -B1M /tmp /dev/shm /run/shells | tail -n 3").stdout.split()
    assert sizes == ["64", "16", "32"]
    inodes = sandbox.execute("df --output=itotal /tmp /dev/shm /run/shells | tail -n 3").stdout.split()
    assert inodes == ["16384", "4096", "16384"]
    full = sandbox.execute("head -c 100M /dev/zero >/tmp/full")
    assert (full.exit_code, "No space left" in full.stderr) == (1, True)


def test_a_workspace_is_its_sessions_own(stack: Stack, sandbox: SandboxClient) -> None:
    """What one session writes, no other one sees or changes."""
    sandbox.execute("echo secret >note; chmod 644 note", check=True)
    with stack.client() as other:
        assert other.execute("ls -A /workspace").stdout == ""
        other.execute("echo mine >note")
    assert sandbox.execute("cat note").stdout == "secret\n"


def test_too_much_memory_ends_the_command_and_not_the_session(stack: Stack) -> None:
    """The kernel takes the greedy process, the result says so, and the shell still has its state."""
    with stack.client(memory="128m") as sandbox:
        sandbox.execute("x=kept")
        result = sandbox.execute("python3 -c 'b = bytearray(400 << 20)'")
        assert (result.exit_code, result.oom_killed) == (137, True)
        assert sandbox.execute("echo $x").stdout == "kept\n"


def test_a_fork_bomb_cannot_take_the_guest_down(sandbox: SandboxClient) -> None:
    """The user's limit stops the bomb, and the next command still runs."""
    sandbox.execute("for i in $(seq 500); do sleep 60 & done; wait", timeout=3)
    assert sandbox.execute("echo alive").stdout == "alive\n"


def test_a_file_has_a_largest_size(sandbox: SandboxClient) -> None:
    """SANDBOX_DISK_MAX, here the default of 10 GiB: a file may not grow beyond it, not even a sparse one."""
    assert sandbox.execute("truncate -s 10G fits && rm fits").exit_code == 0
    assert sandbox.execute("truncate -s 10241M grows").exit_code != 0


def test_a_flush_of_everything_is_not_done(sandbox: SandboxClient) -> None:
    """sync and syncfs succeed, kernel AIO is not there, fsync is real."""
    assert sandbox.execute(["python3", "-c", FLUSH]).stdout.split() == ["0", "-1", "38"]
    assert sandbox.execute("sync && echo x >f && sync f").exit_code == 0


def test_the_engine_keeps_no_log(stack: Stack, sandbox: SandboxClient) -> None:
    """Nor does it start a sandbox again that has ended."""
    options = json.loads(docker("inspect", stack.container_of(sandbox.session_id)))[0]["HostConfig"]
    assert options["LogConfig"]["Type"] == "none"
    assert options["RestartPolicy"]["Name"] == "no"


def test_the_environment_of_a_session_is_known_to_it_alone(stack: Stack) -> None:
    """Neither the engine nor the store nor a log has it."""
    with stack.client(env={"TOKEN": "s3cr3t-of-mine"}) as sandbox:
        assert sandbox.execute("echo $TOKEN").stdout == "s3cr3t-of-mine\n"
        inspected = docker("inspect", stack.container_of(sandbox.session_id))
    kept = [path.read_bytes() for path in (stack.dir / "state" / "store").rglob("*") if path.is_file()]
    kept += [inspected.encode(), stack.log("web").encode(), stack.log("keeper").encode()]
    assert not any(b"s3cr3t-of-mine" in one for one in kept)
