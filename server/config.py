"""All configuration: SANDBOX_* variables, read once into one frozen Config.

An unknown SANDBOX_* name is an error, so that a misspelt limit cannot be silently ignored. Every field here
is a line in docs/configuration.md; a test compares the two.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from server.limit_settings import LimitSettings
from server.settings import amount as _amount
from server.settings import byte_count as _bytes
from server.settings import count as _count
from server.settings import factor as _factor
from server.settings import seconds as _seconds
from server.settings import setting as _setting

_CLIENT_NAMES = {"SANDBOX_URL", "SANDBOX_API_KEY"}  # the client's own, often set beside ours
_IMAGE_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


class BadConfig(Exception):
    """A variable is unknown or malformed. The message names it and says what it should be."""


def _text(raw: str) -> str:
    return raw


def _until(raw: str) -> float:
    return 0.0 if raw.strip() == "0" else _seconds(raw)


def _pace(raw: str) -> float:
    value = float(raw)
    if not 1 <= value <= 3600:
        raise ValueError("must be a number of seconds from 1 to 3600")
    return value


def _languages(raw: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in raw.split(",") if part.strip())
    if not set(names) <= {"bash", "python"}:
        raise ValueError("must be bash, python, or both with a comma between them")
    return names


def _cpus(raw: str) -> float:
    value = float(raw)
    if not 0.01 <= value <= 1024:
        raise ValueError("must be a number of CPUs, at least 0.01")
    return value


def _size_or_auto(raw: str) -> int:
    return 0 if raw.strip().lower() in ("", "auto") else _bytes(raw)


def _yes(raw: str) -> bool:
    if raw not in ("yes", "no"):
        raise ValueError("must be yes or no")
    return raw == "yes"


def _directory(raw: str) -> str:
    if raw and not os.path.isabs(raw):
        raise ValueError("must be an absolute path")
    return raw


def _address(raw: str) -> str:
    host, separator, port = raw.rpartition(":")
    if not separator or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError("must be ADDRESS:PORT, such as 127.0.0.1:5000")
    return raw


def _names(raw: str) -> tuple[str, ...]:
    names = tuple(part.strip().lower() for part in raw.split(",") if part.strip())
    if not names:
        raise ValueError("must be a comma-separated list with at least one entry")
    return names


def _origins(raw: str) -> tuple[str, ...]:
    origins = tuple(part.strip().lower() for part in raw.split(",") if part.strip())
    if not all(re.fullmatch(r"https?://[^/\s]+", origin) for origin in origins):
        raise ValueError("must be origins such as https://console.example.com, comma-separated")
    return origins


def _images(raw: str) -> dict[str, str]:
    images = {}
    for part in raw.split(","):
        name, _, reference = part.strip().partition("=")
        if not reference or not _IMAGE_NAME.fullmatch(name):
            raise ValueError("must be NAME=REFERENCE, comma-separated; the first is the default")
        images[name] = reference
    return images


def _one_of(*choices: str) -> Callable[[str], str]:
    def cast(raw: str) -> str:
        if raw not in choices:
            raise ValueError(f"must be one of {', '.join(choices)}")
        return raw

    return cast


def _default_state_dir(env: Mapping[str, str]) -> str:
    if os.geteuid() == 0:
        return "/var/lib/sandbox-server"
    return str(Path(env.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "sandbox-server")


@dataclass(frozen=True)
class Config(LimitSettings):
    """One field for each variable: `memory_max` is SANDBOX_MEMORY_MAX."""

    state_dir: str = _setting("", _text, "where everything that must survive a restart lives")
    bind: str = _setting("127.0.0.1:5000", _address, "address and port of the HTTP server")
    hosts: tuple[str, ...] = _setting("localhost,127.0.0.1,[::1]", _names, "Host names answered; * for any")
    pool_min: int = _setting("2", _amount, "warm sandboxes kept at least, for each image")
    pool_max: int = _setting("16", _amount, "warm sandboxes kept at most, for each image; 0: none")
    pool_languages: tuple[str, ...] = _setting(
        "bash", _languages, "interpreters that warm sandboxes have running"
    )
    web_workers: int = _setting("2", _count, "gunicorn workers")
    web_user: str = _setting("", _text, "user the workers become when started by root")
    images: Mapping[str, str] = _setting(
        "default=sandbox-server/default:latest",
        _images,
        "allowed images, NAME=REFERENCE; the first is the default",
    )
    oci_runtime: str = _setting(
        "", _text, "runc, crun, runsc or any name the engine knows; empty: crun if it works, or its default"
    )
    docker_host: str = _setting("", _text, "the engine's address; empty: DOCKER_HOST or the local socket")
    memory: int = _setting("512m", _bytes, "memory of a session that does not ask")
    memory_max: int = _setting("4g", _bytes, "most memory a session may ask for")
    cpus: float = _setting("1", _cpus, "CPUs of a session that does not ask")
    cpus_max: float = _setting("4", _cpus, "most CPUs a session may ask for")
    processes: int = _setting("256", _count, "processes and threads a session's user may have")
    disk: int = _setting("1g", _bytes, "disk space of a session that does not ask")
    disk_max: int = _setting("10g", _bytes, "most disk space a session may ask for")
    tenant_disk: int = _setting("20g", _bytes, "disk space of all workspaces and snapshots of a tenant")
    disk_overcommit: float = _setting(
        "4", _factor, "disk space promised to live sessions, as a multiple of the storage"
    )
    storage: str = _setting(
        "btrfs", _one_of("btrfs", "directory"), "where workspaces live; directory: no hard disk limits"
    )
    storage_size: int = _setting(
        "auto",
        _size_or_auto,
        "of the file that is made for btrfs; auto: a quarter of the free disk, 64g at most",
    )
    datasets_dir: str = _setting("", _directory, "directory whose entries sessions may have below /data")
    persist_users: bool = _setting("no", _yes, "whether the workspace of a session with a user_id is kept")
    snapshots_max: int = _setting("100", _count, "snapshots a tenant may keep")
    snapshot_age: float = _setting("2592000", _seconds, "seconds until a snapshot is removed")
    checkpoints_max: int = _setting("20", _count, "checkpoints kept of a session")
    lease: float = _setting("3600", _seconds, "seconds a session lives after its last use")
    lease_max: float = _setting("86400", _seconds, "longest lease a session may ask for")
    age_max: float = _setting("604800", _seconds, "seconds after which a session ends even if it is used")
    pause_after: float = _setting("300", _until, "seconds without use until a session is paused; 0: never")
    cold_after: float = _setting("1800", _until, "seconds without use until it loses its sandbox; 0: never")
    timeout: float = _setting("30", _seconds, "seconds a command may run if it does not say")
    timeout_max: float = _setting("3600", _seconds, "longest timeout a command may ask for")
    output_limit: int = _setting("1m", _bytes, "bytes kept of each of stdout, stderr and output")
    log_limit: int = _setting("16m", _bytes, "bytes kept of an execution's log")
    body_limit: int = _setting("80m", _bytes, "largest JSON body of commands, input and edits")
    uploads: int = _setting("2g", _bytes, "bytes of uploads that a tenant may keep")
    upload_age: float = _setting(
        "86400",
        _seconds,
        "seconds after which an upload is removed, since it was sent or last became a new session's dataset",
    )
    executions_max: int = _setting("32", _count, "commands a session may run or queue at once")
    terminal_idle: float = _setting("1800", _seconds, "seconds without a byte until a terminal is let go")
    origins: tuple[str, ...] = _setting(
        "", _origins, "sites whose pages may open terminals and follow events, besides our own"
    )
    upload_limit: int = _setting("10g", _bytes, "largest file or archive that may be uploaded")
    download_limit: int = _setting("10g", _bytes, "most bytes of a file or archive that may be downloaded")
    sample_interval: float = _setting("15", _pace, "seconds between two samples of what each session uses")
    audit_commands: str = _setting(
        "hash",
        _one_of("text", "hash", "none"),
        "what the audit keeps of a command: its text, its SHA-256 (hash), none",
    )
    audit_age: float = _setting("7776000", _seconds, "seconds after which a record of the audit is removed")
    audit_size: int = _setting("256m", _bytes, "bytes of the audit kept for each tenant; the oldest go first")
    log_format: str = _setting("json", _one_of("json", "console"), "how log lines look")
    log_level: str = _setting("info", _one_of("debug", "info", "warning", "error"), "how much is logged")

    @property
    def default_image(self) -> str:
        return next(iter(self.images))

    @property
    def container_processes(self) -> int:
        """The user's, and a reserve for the guest, so that a fork bomb leaves it room for its threads."""
        return self.processes + 128 + 4 * self.executions_max

    @property
    def state(self) -> Path:
        return Path(self.state_dir)

    @property
    def store_path(self) -> Path:
        return self.state / "store" / "store.db"

    @property
    def presence_path(self) -> Path:
        """Where web workers say to which sessions they speak; the keeper looks at it."""
        return self.store_path.with_name("presence")

    @property
    def audit_path(self) -> Path:
        return self.state / "store" / "audit.db"

    @property
    def uploads_dir(self) -> Path:
        return self.state / "uploads"

    @property
    def keeper_socket(self) -> Path:
        return self.state / "run" / "keeper.sock"

    @property
    def sandboxes_dir(self) -> Path:
        return self.state / "sandboxes"

    @property
    def volumes_dir(self) -> Path:
        return self.state / "volumes"

    @property
    def storage_note(self) -> Path:
        """Which storage this installation began with."""
        return self.state / "storage"

    @property
    def storage_image(self) -> Path:
        return self.state / "volumes.btrfs"


def load(env: Mapping[str, str]) -> Config:
    names = {f"SANDBOX_{setting.name.upper()}": setting for setting in fields(Config)}
    unknown = sorted(
        name for name in env if name.startswith("SANDBOX_") and name not in names.keys() | _CLIENT_NAMES
    )
    if unknown:
        raise BadConfig(f"unknown setting {', '.join(unknown)}; the known ones are in docs/configuration.md")
    values = {}
    for name, setting in names.items():
        raw = env.get(name, setting.metadata["default"])
        try:
            values[setting.name] = setting.metadata["cast"](raw)
        except ValueError as exc:
            raise BadConfig(f"{name}={raw!r}: {_reason(exc)}") from exc
    values["state_dir"] = values["state_dir"] or _default_state_dir(env)
    return _checked(Config(**values))


def _reason(exc: ValueError) -> str:
    text = str(exc)
    return text if text.startswith("must") else "must be a number"


def _checked(config: Config) -> Config:
    for small, large in (
        ("pool_min", "pool_max"),
        ("memory", "memory_max"),
        ("cpus", "cpus_max"),
        ("disk", "disk_max"),
        ("lease", "lease_max"),
        ("timeout", "timeout_max"),
    ):
        if getattr(config, small) > getattr(config, large):
            raise BadConfig(f"SANDBOX_{small.upper()} is above SANDBOX_{large.upper()}")
    if config.pause_after > config.cold_after > 0:
        raise BadConfig("SANDBOX_PAUSE_AFTER is above SANDBOX_COLD_AFTER")
    if not config.state.is_absolute():
        raise BadConfig(f"SANDBOX_STATE_DIR={config.state_dir!r}: must be an absolute path")
    if len(str(config.keeper_socket)) > 100:
        raise BadConfig(
            f"SANDBOX_STATE_DIR={config.state_dir!r}: too long for a unix socket; use a shorter path"
        )
    return config
