"""The named interpreters of a session: each runs one command at a time, in the order of asking."""

from __future__ import annotations

import os
import threading
from collections import deque

from .bash import Bash
from .capture import Output
from .control import Cancelled, Control
from .ground import Ground
from .kept import Kept
from .python import Python
from .work import Outcome, Work

MOST_SHELLS = 16
MAIN = "main"
_PREPARE_SECONDS = 20.0
LANGUAGES: dict[str, type[Kept]] = {"bash": Bash, "python": Python}


class TooManyShells(Exception):
    """The session has as many named shells as it may have."""


class ShellBusy(Exception):
    """The shell was still running earlier commands when the caller's patience ended."""


class Turn:
    """A lock that is given in the order in which it was asked for."""

    def __init__(self) -> None:
        self._waiting: deque[threading.Event] = deque()
        self._lock = threading.Lock()

    def acquire(self, timeout: float, control: Control) -> bool:
        """False when time was up; raises Cancelled when the command was cancelled meanwhile."""
        mine = threading.Event()
        with self._lock:
            self._waiting.append(mine)
            if self._waiting[0] is mine:
                return True
        control.queue(mine)
        mine.wait(timeout)
        with self._lock:
            if self._waiting[0] is mine:
                return True  # also in the very last moment; a cancelled one is refused when it begins
            self._waiting.remove(mine)
        if control.cancelled:
            raise Cancelled
        return False

    def is_free(self) -> bool:
        return not self._waiting

    def release(self) -> None:
        with self._lock:
            self._waiting.popleft()
            if self._waiting:
                self._waiting[0].set()


class _Shell:
    def __init__(self, kept: Kept) -> None:
        self.kept = kept
        self.turn = Turn()

    def is_over(self) -> bool:
        return self.turn.is_free() and not self.kept.alive


class Shells:
    def __init__(self, ground: Ground, place: str) -> None:
        self._ground = ground
        self._place = place
        self._shells: dict[tuple[str, str], _Shell] = {}
        self._lock = threading.Lock()
        self._made = 0

    def run(self, language: str, name: str, work: Work, output: Output) -> Outcome:
        shell = self._named(language, name)
        if not shell.turn.acquire(work.timeout, work.control):
            raise ShellBusy
        try:
            return shell.kept.run(work, output)
        finally:
            shell.turn.release()

    def prepare(self, language: str) -> None:
        """Start the interpreter that a session's first command would have to wait for, and use it once:
        what is done for the first time takes longer."""
        shell = self._named(language, MAIN)
        if shell.turn.acquire(_PREPARE_SECONDS, Control()):
            try:
                shell.kept.prepare()
                shell.kept.run(self._setting(shell, {}), Output(0))
            finally:
                shell.turn.release()

    def adopt(self, env: dict[str, str]) -> None:
        """Tell the interpreters that run already what those started from now on will know.

        The home directory, too, may be another one by now than when they entered it.
        """
        for (language, name), shell in list(self._shells.items()):
            if shell.kept.alive:
                self.run(language, name, self._setting(shell, env), Output(0))

    def _setting(self, shell: _Shell, env: dict[str, str]) -> Work:
        return Work(shell.kept.setting(env, self._ground.home), _PREPARE_SECONDS)

    def aside(self, language: str, name: str, work: Work, output: Output, patience: float) -> Outcome | None:
        """Run something of ours in a user's shell, without a trace in `$?`; None if it stays busy."""
        shell = self._named(language, name)
        if not shell.turn.acquire(patience, work.control):
            return None
        try:
            with shell.kept.unnoticed():
                return shell.kept.run(work, output)
        finally:
            shell.turn.release()

    def processes(self) -> set[int]:
        """The interpreters themselves."""
        return {pid for shell in list(self._shells.values()) if (pid := shell.kept.pid) is not None}

    def run_once(self, language: str, work: Work, output: Output) -> Outcome:
        """In an interpreter that is made for this command and ends with it."""
        kept = self._make(language)
        try:
            return kept.run(work, output)
        finally:
            kept.close()

    def _named(self, language: str, name: str) -> _Shell:
        with self._lock:
            shell = self._shells.get((language, name))
            if shell is None:
                self._drop_ended()
                if len(self._shells) >= MOST_SHELLS:
                    raise TooManyShells
                shell = self._shells[language, name] = _Shell(self._make_locked(language))
            return shell

    def _drop_ended(self) -> None:
        """A shell that was left with `exit` gives its name back when others are wanted."""
        if len(self._shells) >= MOST_SHELLS:
            self._shells = {name: shell for name, shell in self._shells.items() if not shell.is_over()}

    def _make(self, language: str) -> Kept:
        with self._lock:
            return self._make_locked(language)

    def _make_locked(self, language: str) -> Kept:
        self._made += 1
        place = os.path.join(self._place, str(self._made))
        return LANGUAGES[language](self._ground, place)
