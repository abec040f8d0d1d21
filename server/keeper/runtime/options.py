"""How a container is asked for. Every option is a line of docs/security.md."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from server.config import Config
from server.keeper.runtime import Spec
from server.keeper.runtime.binds import mounts_of
from server.keeper.runtime.masked import MASKED_PATHS, READONLY_PATHS

INSTANCE = "sandbox-server.instance"
SANDBOX = "sandbox-server.sandbox"
UID = "sandbox-server.uid"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def _seccomp() -> str:
    return (Path(__file__).parent / "seccomp.json").read_text()


@dataclass(frozen=True)
class Options:
    """What is the same for all containers of an installation."""

    config: Config
    instance: str
    socket_gid: int
    seccomp: str = field(default_factory=_seccomp)

    def of(self, spec: Spec, oci_runtime: str, is_gvisor: bool) -> dict[str, Any]:
        """`oci_runtime` is a name that the engine knows; empty: its default."""
        chosen = {"Runtime": oci_runtime} if oci_runtime else {}
        return {
            "Image": spec.image,
            "Entrypoint": ["python3", "-IS", "/opt/sandbox/start.py"],
            "Cmd": [],
            "User": f"0:{self.socket_gid}",
            "Hostname": "sandbox",
            "WorkingDir": "/workspace",
            "Env": [f"PATH={_PATH}", "HOME=/workspace", "LANG=C.UTF-8", "TERM=xterm-256color"],
            "Labels": {INSTANCE: self.instance, SANDBOX: spec.id, UID: str(spec.uid)},
            "NetworkDisabled": True,
            "Healthcheck": {"Test": ["NONE"]},
            "HostConfig": {**self._of_host(spec, is_gvisor), **chosen},
        }

    def _of_host(self, spec: Spec, is_gvisor: bool) -> dict[str, Any]:
        return {
            "NetworkMode": "none",
            "Dns": ["127.0.0.1"],  # otherwise the host's resolvers are copied into /etc/resolv.conf
            "IpcMode": "private",
            "CgroupnsMode": "private",
            "ReadonlyRootfs": True,
            "CapDrop": ["ALL"],
            "CapAdd": ["SETUID", "SETGID", "KILL"],
            "SecurityOpt": ["no-new-privileges", f"seccomp={self.seccomp}"],
            "Memory": spec.memory,
            "MemorySwap": spec.memory,
            "NanoCpus": round(spec.cpus * 1e9),
            "PidsLimit": self.config.container_processes,
            # Above the host's own processes, far below the commands': in a sandbox short of memory they go
            # first, however much of their output the guest holds; on a host, sandboxes do.
            "OomScoreAdj": 50,
            # Names take memory too: without a limit of their own on inodes, empty files could have all of it.
            "Tmpfs": {
                "/tmp": "rw,nosuid,nodev,exec,size=64m,nr_inodes=16k,mode=1777",
                "/dev/shm": "rw,nosuid,nodev,noexec,size=16m,nr_inodes=4k,mode=1777",
                "/run/shells": "rw,nosuid,nodev,noexec,size=32m,nr_inodes=16k,mode=711",
            },
            "Mounts": mounts_of(spec, is_gvisor),
            "Ulimits": self._ulimits(),
            "MaskedPaths": list(MASKED_PATHS),
            "ReadonlyPaths": list(READONLY_PATHS),
            "LogConfig": {"Type": "none"},
            "RestartPolicy": {"Name": "no"},
        }

    def _ulimits(self) -> list[dict[str, Any]]:
        limits = {
            "core": (0, 0),
            "nofile": (1024, 4096),
            "memlock": (1 << 16, 1 << 16),
            "msgqueue": (819200, 819200),
            "sigpending": (1024, 1024),
            "fsize": (self.config.disk_max, self.config.disk_max),
        }
        return [{"Name": name, "Soft": soft, "Hard": hard} for name, (soft, hard) in limits.items()]
