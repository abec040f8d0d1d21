"""One person at a session's terminal. A broken connection is made anew, and goes on where it broke."""

from __future__ import annotations

from ..credentials import Credentials
from ..errors import SandboxError
from ..retries import Holdout, Patience
from ..sandbox import CONNECT_TIMEOUT, READ_TIMEOUT, RECONNECT_TIMEOUT, RETRIES
from .keys import Escapes
from .screen import Screen
from .terminal import Output, Over, Place, Terminal

TICK = 5.0  # seconds between looks at the clock while nothing happens
MOST_KEYS = 64 * 1024  # typed while there is no connection; what is beyond is dropped


class Visit:
    """From the first connection to the shell's end, or until the person leaves."""

    def __init__(self, own: Screen, found: Credentials, session_id: str, name: str) -> None:
        self._place = Place(found, session_id, name)
        self._own = own
        self._escapes = Escapes()
        self._last: Output | None = None
        self._unsent = b""
        self._left: Over | None = None

    def stay(self) -> Over:
        patience = Patience(CONNECT_TIMEOUT, READ_TIMEOUT, RETRIES, RECONNECT_TIMEOUT)
        tries = Holdout(patience)
        while True:
            try:
                return self._connect(tries)
            except SandboxError as error:
                pause = tries.pause(error)
                if pause is None:
                    raise
            self._read_keys(None, pause)  # also without a connection one can leave
            if self._left is not None:
                return self._left

    def _connect(self, tries: Holdout) -> Over:
        line = Terminal(self._place, self._own.size, self._last)
        try:
            while self._left is None:
                over = self._attend(line, tries)
                if over is not None:
                    return over
            return self._left
        finally:
            line.close()

    def _attend(self, line: Terminal, tries: Holdout) -> Over | None:
        """One round: keys, size, output."""
        if not self._read_keys(line, TICK):
            line.check()
            return None
        for news in line.receive():
            if isinstance(news, Over):
                return news
            self._own.show(news.data)
            self._last = news
            tries.progress()
        return None

    def _read_keys(self, line: Terminal | None, seconds: float) -> bool:
        """Pass keys and size on. Whether the line can be read."""
        keys, resized, ready = self._own.wait([] if line is None else [line], seconds)
        typed = self._escapes.read(keys or b"")
        self._own.show(typed.show)
        self._unsent = (self._unsent + typed.send)[:MOST_KEYS]
        if typed.leave or keys == b"":
            self._left = Over(None, "left the terminal")
        if line is not None and self._last is not None and self._unsent:
            line.type(self._unsent)
            self._unsent = b""
        if line is not None and resized:
            line.resize(self._own.size)
        return bool(ready)
