"""What a request may ask for on this server: defaults filled in, excess refused by name."""

from __future__ import annotations

from dataclasses import replace

from server.api.models import RunCommand
from server.api.run_models import RunOnce
from server.api.session_models import CreateSession
from server.api.wiring import parts, tenant
from server.config import Config
from server.errors import Invalid
from server.guest_client import Command
from server.sessions import Wish
from server.spool import Stdin

_SINGLE_LEASE = 60.0


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
        disk=int(_within("disk", asked.disk, config.disk, config.disk_max, "bytes")),
        workspace=_workspace(asked, config),
        source=asked.snapshot,
        datasets=tuple(asked.datasets or ()),
        checkpoint=asked.checkpoint,
        ephemeral=asked.ephemeral,
    )


def _workspace(asked: CreateSession, config: Config) -> str | None:
    """A name of the caller's, or the user's own, which no caller can choose."""
    persist = config.persist_users if asked.persist is None else asked.persist
    if asked.workspace is not None or not persist or asked.user_id is None:
        return asked.workspace
    # Without a slash, which would make it another route's: `user:x/files` is not the files of `user:x`.
    return f"user:{asked.user_id.replace('%', '%25').replace('/', '%2F')}"


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


def single_command_of(asked: RunOnce, config: Config) -> Command:
    given = asked.stdin_base64 if asked.stdin is None else asked.stdin.encode()
    return Command(
        command=asked.command,
        timeout=_within("timeout", asked.timeout, config.timeout, config.timeout_max, "seconds"),
        language=asked.language,
        shell=None if isinstance(asked.command, list) else "main",
        cwd=asked.cwd,
        env=asked.env,
        stdin=_stdin(given),
    )


def single_wish_of(asked: RunOnce, config: Config) -> Wish:
    """A session for one command: should nobody be left to end it, its lease is short."""
    shared = ("image", "memory", "cpus", "disk", "snapshot", "datasets")
    like = CreateSession(ephemeral=True, **{name: getattr(asked, name) for name in shared})
    return replace(wish_of(like, config), lease=min(_SINGLE_LEASE, config.lease_max))


def _stdin(data: bytes | None) -> Stdin | None:
    return None if data is None else parts().spool.hold(tenant(), data)


def _within(field: str, asked: float | None, default: float, most: float, unit: str) -> float:
    value = default if asked is None else asked
    if value > most:
        raise Invalid(
            field, f"'{field}' may be {int(most) if most == int(most) else most} {unit} at most here."
        )
    return value
