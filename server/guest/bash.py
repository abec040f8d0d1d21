"""A bash that stays. It runs as an interactive shell without a terminal, fed line by line.

Interactive, because only such a bash takes SIGINT as a person means Ctrl-C: the whole command is dropped,
loops and lists included, and the shell with its variables lives on. Commands are sourced from a file rather
than typed or eval'ed: inside `source` bash behaves as in a script, without job notices or an echoed "exit".
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import time
from typing import Iterator

from .capture import Output
from .kept import READY, Died, Kept, NeverRead, Report, outcome_of
from .pipes import Pipes, write_file
from .processes import NoSuchDirectory
from .streams import Reader
from .trees import kill_tree, now_ticks, signal_all
from .usage import Meter
from .work import Outcome, Work, signal_name

_ORDER_SECONDS = 10.0
_ANSWER_SECONDS, _FREED_SECONDS = 1.0, 3.0  # for an answer of bash's; after what it waits for was ended
_CANNOT_FORK = 254  # `$?` where bash has dropped a command because it could not fork
_LONGEST_CWD = 4096
_PREPARE = r"PS1= PS2= PS4='+ '; set +o history +H +m; unset HISTFILE MAILCHECK" + "\n"


class Bash(Kept):
    _last_status = 0

    def _argv(self) -> list[str]:
        return ["/bin/bash", "--norc", "--noprofile", "--noediting", "-i"]

    def _start(self) -> None:
        super()._start()
        self._last_status = 0
        self._write((_PREPARE + self._tell(READY)).encode())

    def setting(self, env: dict[str, str], directory: str) -> str:
        exports = "".join(f"\\builtin export {name}={shlex.quote(value)}\n" for name, value in env.items())
        return f"{exports}\\builtin cd -- {shlex.quote(directory)}"

    @contextlib.contextmanager
    def unnoticed(self) -> Iterator[None]:
        status = self._last_status
        yield
        self._last_status = status

    def _run(self, work: Work, output: Output) -> Outcome:
        came_from, went_to = self._go(work.cwd) if work.cwd else ("", "")
        token = self._token()
        self._pipes.prepare(work)
        orders = f"{self._recall_status()}{self._source(work, self._pipes)}\n{self._tell(token)}"
        since = now_ticks()
        report = self._obey(token, orders, work, output)
        self._last_status = report.status
        outcome = outcome_of(report, output)
        if report.status == _CANNOT_FORK and not self._goes_on(since):
            self._replace()
            outcome.restarted, outcome.cwd = True, self._home
        elif came_from and report.cwd == went_to:
            outcome.cwd = self._return_to(came_from)
        if 128 < report.status <= 128 + 64 and not outcome.timed_out:
            outcome.signal = signal_name(report.status - 128)
        return outcome

    def _goes_on(self, since: int) -> bool:
        """Return True once bash takes its next order.

        After a fork that failed it first waits for the last process that it has started: a defect of bash's.
        That process is ended with all else that the command has left; an older one is not.
        """
        assert self._child is not None
        try:
            if self._answers(_ANSWER_SECONDS):
                return True
            kill_tree(self._child.pid, self._child.mark, since, spare_root=True)
            return self._answers(_FREED_SECONDS)
        except (Died, NeverRead):  # the command has run: whatever happens here, it must not run again
            return False

    def _answers(self, patience: float) -> bool:
        assert self._child is not None
        token = self._token()
        reader, meter = self._reader({}, Output(0)), Meter(self._child, now_ticks(), kept=True)
        self._write(self._tell(token).encode())
        return self._await(token, reader, time.monotonic() + patience, meter) is not None

    def _replace(self) -> None:
        """The next command gets a fresh bash; what earlier ones have left in the background stays."""
        assert self._child is not None
        if self.alive:
            signal_all({self._child.pid}, signal.SIGKILL)
        Reader({}, Output(0)).watch_until(self._child.exited, time.monotonic() + _ANSWER_SECONDS)
        self._clear()

    def _go(self, directory: str) -> tuple[str, str]:
        """To the command's own directory: where from (to go back unless the command moves), where to."""
        came_from = self._ask(":").cwd
        target = directory if directory.startswith("/") else f"./{directory}"
        arrived = self._ask(f"\\builtin cd -- {shlex.quote(target)} 2>{os.devnull}")
        if arrived.status != 0:
            raise NoSuchDirectory
        return came_from, arrived.cwd

    def _return_to(self, directory: str) -> str:
        """The command has run: whatever happens here, it must not run again."""
        try:
            return self._ask(f"\\builtin cd -- {shlex.quote(directory)}").cwd
        except (Died, NeverRead):
            return self._home

    def _ask(self, order: str) -> Report:
        assert self._child is not None
        token = self._token()
        reader, meter = self._reader({}, Output(0)), Meter(self._child, now_ticks(), kept=True)
        deadline = time.monotonic() + _ORDER_SECONDS
        return self._order(token, f"{order}\n{self._tell(token)}", reader, deadline, meter)

    def _tell(self, token: str) -> str:
        return f'\\builtin printf \'%s %s %s\\0\' {token} "$?" "${{PWD-}}" >{self._report_path}\n'

    def _source(self, work: Work, pipes: Pipes) -> str:
        """Variables for this command alone stand before `source`; by way of a file, as they can be long."""
        path = pipes.command
        if work.env:
            path = os.path.join(self._place, "with_env")
            settings = " ".join(f"{name}={shlex.quote(value)}" for name, value in work.env.items())
            # Not `builtin`: after it bash does not export such variables to programs.
            write_file(path, f"{settings} \\command . {pipes.command}\n".encode())
        return f"\\builtin . {path} <{pipes.stdin} >{pipes.stdout} 2>{pipes.stderr}"

    def _recall_status(self) -> str:
        """`$?` is what the last command left, although our own report came in between."""
        if self._last_status == 0:
            return ""
        path = os.path.join(self._place, "status")
        write_file(path, f"return {self._last_status}\n".encode())
        return f"\\builtin . {path}; "

    def _parse(self, token: str, raw: bytes) -> Report | None:
        fields = raw.split(b" ", 2)
        if len(fields) != 3 or fields[0] != token.encode() or not fields[1].isdigit():
            return None
        return Report(
            int(fields[1]) & 0xFF, fields[2][:_LONGEST_CWD].decode("utf-8", "replace") or self._home
        )
