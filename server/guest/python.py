"""A Python that stays: variables and imports live on between commands. `python_driver.py` runs inside it."""

from __future__ import annotations

import json
import os
import shutil
from typing import Any

from .capture import Output
from .kept import READY, Kept, Report, outcome_of
from .pipes import write_file
from .processes import NoSuchDirectory
from .work import Outcome, Work

_PATH = "/usr/local/bin:/usr/bin:/bin"  # the image's own, whatever the session's PATH says
_DRIVER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "python_driver.py")


class Python(Kept):
    def _argv(self) -> list[str]:
        return [shutil.which("python3", path=_PATH) or "python3", "-u", _DRIVER, self._report_path, READY]

    def setting(self, env: dict[str, str], directory: str) -> str:
        return f"__import__('os').environ.update({env!r}); __import__('os').chdir({directory!r})"

    def _run(self, work: Work, output: Output) -> Outcome:
        token = self._token()
        self._pipes.prepare(work)
        path = os.path.join(self._place, "order")
        pipes = {name: getattr(self._pipes, name) for name in ("command", "stdin", "stdout", "stderr")}
        order = {"token": token, "cwd": work.cwd, "env": work.env, **pipes}
        write_file(path, json.dumps(order).encode())
        report = self._obey(token, path + "\n", work, output)
        if report.details.get("no_directory"):
            raise NoSuchDirectory
        return outcome_of(report, output)

    def _parse(self, token: str, raw: bytes) -> Report | None:
        """The driver lives in the user's own process: its words are checked like any other's."""
        try:
            said = json.loads(raw.decode("utf-8"))
        except (ValueError, RecursionError):
            return None
        if (
            not isinstance(said, dict)
            or said.get("token") != token
            or not isinstance(said.get("status"), int)
        ):
            return None
        cwd = said.get("cwd")
        return Report(
            said["status"] & 0xFF, cwd if isinstance(cwd, str) and cwd else self._home, _details(said)
        )


def _details(said: dict[str, Any]) -> dict[str, Any]:
    details: dict[str, Any] = {}
    if isinstance(said.get("value"), str):
        details["value"] = said["value"]
    error = said.get("error")
    if isinstance(error, dict):
        details["error"] = {key: str(error.get(key, "")) for key in ("name", "message", "traceback")}
    if said.get("no_directory") is True:
        details["no_directory"] = True
    return details
