"""What a request may ask for on this server: defaults filled in, excess refused by name."""

from __future__ import annotations

import tempfile

from server.api.models import CreateSession, RunCommand
from server.config import Config
from server.errors import Invalid
from server.guest_client import Command, Stdin
from server.sessions import Wish

_LARGE_STDIN = 1 << 20


def wish_of(asked: CreateSession, config: Config) -> Wish:
    image = asked.image or config.default_image
    if image not in config.images:
        raise Invalid("image", f"There is no image of that name here. Known: {', '.join(config.images)}.")
    return Wish(
        user_id=asked.user_id,
        image=image,
        memory=int(_within("memory", asked.memory, config.memory, config.memory_max, "bytes")),
        cpus=_within("cpus", asked.cpus, config.cpus, config.cpus_max, "CPUs"),
        lease=lease_of(asked.timeout, config) or config.lease,
        env=asked.env or {},
        metadata=asked.metadata or {},
    )


def lease_of(asked: float | None, config: Config) -> float | None:
    return None if asked is None else _within("timeout", asked, asked, config.lease_max, "seconds")


def command_of(asked: RunCommand, config: Config) -> Command:
    stays = asked.background or asked.pty is not None  # nobody waits for it: it may take its time
    default = config.timeout_max if stays else config.timeout
    _within("wait", asked.wait, 0.0, config.timeout_max, "seconds")
    return Command(
        command=asked.command,
        timeout=_within("timeout", asked.timeout, default, config.timeout_max, "seconds"),
        language=asked.language,
        shell=asked.place,
        cwd=asked.cwd,
        env=asked.env,
        stdin=_stdin(asked.stdin_bytes()),
        open_stdin=asked.open_stdin,
        screen=None if asked.pty is None else (asked.pty.cols, asked.pty.rows),
    )


def _stdin(data: bytes | None) -> Stdin | None:
    """What is large waits on disk, under no name: commands take their time, and memory is for parsing."""
    if data is None or len(data) <= _LARGE_STDIN:
        return data
    file = tempfile.TemporaryFile()  # noqa: SIM115 - closed when the command that reads it is forgotten
    file.write(data)
    return file


def _within(field: str, asked: float | None, default: float, most: float, unit: str) -> float:
    value = default if asked is None else asked
    if value > most:
        raise Invalid(
            field, f"'{field}' may be {int(most) if most == int(most) else most} {unit} at most here."
        )
    return value
