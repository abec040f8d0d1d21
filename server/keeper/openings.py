"""Openings under way: callers who ask for the same session at the same time share one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future

_FIRST_SECONDS = 2.0
_SECONDS = 90.0


class Openings:
    def __init__(self) -> None:
        self._begun = threading.Condition()
        self._going_on: dict[str, Future[None]] = {}

    def await_first(self, session: str, still_wanted: Callable[[], bool]) -> None:
        """Return when somebody has begun, or nobody needs to any more, or after a while."""
        with self._begun:
            self._begun.wait_for(lambda: session in self._going_on or not still_wanted(), _FIRST_SECONDS)

    def once(self, session: str, open_it: Callable[[], None]) -> None:
        """Open it, or wait for whoever does; all get the same end."""
        with self._begun:
            going_on = self._going_on.get(session)
            if going_on is None:
                mine = self._going_on[session] = Future()
                self._begun.notify_all()
        if going_on is not None:
            going_on.result(timeout=_SECONDS)
            return
        try:
            open_it()
        except BaseException as exc:
            mine.set_exception(exc)
            raise
        else:
            mine.set_result(None)
        finally:
            with self._begun:
                del self._going_on[session]

    def any(self) -> bool:
        return bool(self.all())

    def all(self) -> set[str]:
        """The sessions."""
        with self._begun:
            return set(self._going_on)
