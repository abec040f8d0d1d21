"""Workspaces with names: they outlive their sessions and are mounted again by the next.

One can be looked into without a session of the caller's: then a session that only visits it is opened, which
steps aside as soon as somebody wants to work there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from server import errors
from server.config import Config
from server.keeper_client import KeeperClient
from server.sessions import Sessions, Wish
from server.volume_rows import VolumeRows, Workspace

_VISIT_SECONDS = 60.0


class Workspaces:
    def __init__(self, config: Config, sessions: Sessions, rows: VolumeRows, keeper: KeeperClient) -> None:
        self._config = config
        self._sessions = sessions
        self._rows = rows
        self._keeper = keeper

    def list(
        self, tenant: str, after: str, limit: int
    ) -> tuple[list[tuple[Workspace, int | None]], str | None]:
        """Each with the bytes that it accounts for, if that can be told; and the cursor for what follows."""
        found = self._rows.workspaces(tenant, after, limit)
        used = self._keeper.measure([one.volume for one in found]) if found else []
        following = found[-1].name if len(found) == limit else None
        return list(zip(found, used, strict=True)), following

    def get(self, tenant: str, name: str) -> tuple[Workspace, int | None]:
        found = self._rows.workspace(tenant, name)
        return found, self._keeper.measure([found.volume])[0]

    def delete(self, tenant: str, name: str) -> None:
        self._rows.workspace(tenant, name)
        self._end_visit(tenant, name)
        volume = self._rows.remove_workspace(tenant, name)
        with contextlib.suppress(errors.Unavailable):  # gone for its owner; the keeper's sweep does the rest
            self._keeper.drop(volume)

    def datasets(self) -> Sequence[dict[str, Any]]:
        """Those of the operator's that any session may have."""
        return self._keeper.datasets()

    def visit(self, tenant: str, name: str) -> tuple[str, bool]:
        """A session in which the workspace can be read: the live one that has it, or one made to look.

        And whether this call has made it.
        """
        self._rows.workspace(tenant, name)
        present = self._rows.visitor(tenant, name)
        if present is not None:
            with contextlib.suppress(errors.SessionNotFound, errors.SessionEnded):
                return self._sessions.get(tenant, present).id, False
        wish = Wish(
            user_id=None,
            image=self._config.default_image,
            memory=self._config.memory,
            cpus=self._config.cpus,
            lease=_VISIT_SECONDS,
            env={},
            metadata={},
            disk=self._config.disk,
            workspace=name,
            visit=True,
        )
        opened = self._sessions.open(tenant, wish, None)
        return opened.session.id, opened.mine

    def _end_visit(self, tenant: str, name: str) -> None:
        present = self._rows.visitor(tenant, name)
        if present is None:
            return
        with contextlib.suppress(errors.SessionNotFound, errors.SessionEnded):
            if self._sessions.get(tenant, present).visit:
                self._sessions.close(tenant, present)
