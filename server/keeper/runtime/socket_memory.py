"""The buffers of TCP sockets, which cgroup v1 counts apart from a container's memory and does not limit.

Over its own loopback a sandbox could otherwise fill the host's memory. cgroup v2 counts them with the rest,
and has none of these files.
"""

from __future__ import annotations

from pathlib import Path

_PLACES = ("docker/{id}", "system.slice/docker-{id}.scope")  # as the engine's two cgroup drivers name them
_SHARE = 4  # a quarter of the session's memory


def limit_socket_buffers(container: str, memory: int) -> None:
    for place in _PLACES:
        group = Path("/sys/fs/cgroup/memory", place.format(id=container))
        try:
            (group / "memory.kmem.tcp.limit_in_bytes").write_text(str(memory // _SHARE))
            return
        except OSError:
            continue
