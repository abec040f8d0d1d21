"""Datasets: what the operator offers to everybody, and what the tenant itself has uploaded, below /data."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Sequence
from pathlib import Path

from server.config import Config
from server.keeper.names import is_component, is_identifier
from server.keeper.runtime import Refused
from server.upload_rows import UploadRows
from server.uploads import distinct, path_of

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class Datasets:
    def __init__(self, config: Config, uploads: UploadRows, clock: Callable[[], float]) -> None:
        self._config = config
        self._place = Path(config.datasets_dir) if config.datasets_dir else None
        self._uploads = uploads
        self._clock = clock

    def find(self, tenant: str, wanted: Sequence[str], again: bool = False) -> dict[str, Path]:
        """Where each of them is, by what it is called below /data. `again`: for a session that has them."""
        ids = [name for name in wanted if is_identifier(name)]
        uploads = self._uploads.kept(tenant, ids) if again else self._uploads.find(tenant, ids, self._clock())
        if uploads and not again:
            self._uploads.renew(uploads, self._clock() + self._config.upload_age)
        named = [(uploads[name].name, self._sent(name)) for name in wanted if name in uploads]
        named += [(name, self._offered(name)) for name in wanted if name not in uploads]
        if not all(is_component(name) for name, _ in named):
            raise Refused("dataset_gone")  # no upload was ever called so
        paths = [path for _, path in named]
        return dict(zip(distinct(name for name, _ in named), paths, strict=True))

    def list(self) -> list[dict[str, object]]:
        """The operator's, with sizes of those that are files."""
        if self._place is None or not self._place.is_dir():
            return []
        named = sorted(path for path in self._place.iterdir() if _NAME.fullmatch(path.name))
        sizes = [path.stat().st_size if path.is_file() else None for path in named]
        return [{"name": path.name, "size": size} for path, size in zip(named, sizes, strict=True)]

    def _sent(self, upload: str) -> Path:
        """A plain file of one name, or nothing: its directory is the web's, which is trusted with no more."""
        path = path_of(self._config, upload)
        try:
            told = os.lstat(path)
        except FileNotFoundError as exc:
            raise Refused("dataset_gone") from exc
        if not stat.S_ISREG(told.st_mode) or told.st_nlink != 1:
            raise Refused("dataset_gone")
        return path

    def _offered(self, name: str) -> Path:
        if self._place is None or not _NAME.fullmatch(name) or not (self._place / name).exists():
            raise Refused("dataset_gone")
        return (self._place / name).resolve()  # the operator may keep it elsewhere
