"""`sandbox cp`: files and directories between this machine and a sandbox, as `docker cp` does it."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from .. import paths
from ..client import SandboxClient
from ..errors import SandboxError
from ..file_errors import FileNotFound
from ..file_infos import Transfer
from ..outgoing import Progress
from .arguments import PROBLEM, Subcommands, Usage
from .output import complain, one_line
from .places import ONLY, Place, place
from .progress import shown

STREAM = "-"
NAMED = 5  # of what was left out, so many are named

EPILOG = f"""\
One of the two is SESSION:PATH, a path in a sandbox, by default below /workspace. {ONLY}
A directory is copied with all that is in it: into DST if that is a directory, else under that name. With
/. at the end of SRC only what is in it is copied. - is stdin or stdout.

  sandbox cp data.csv SESSION:            to /workspace/data.csv
  sandbox cp SESSION:results .            to ./results
  sandbox cp project/. SESSION:           all of project into /workspace
  sandbox cp SESSION:log.txt - | less
"""


def add(commands: Subcommands) -> None:
    cp = commands.add("cp", "copy files to or from a sandbox", copy, epilog=EPILOG)
    cp.add_argument("source", metavar="SRC", help="what to copy")
    cp.add_argument("destination", metavar="DST", help="where to")
    cp.add_argument("-q", "--quiet", action="store_true", help="show no progress")
    cp.add_argument("-r", "--recursive", action="store_true", help="not needed: directories are copied whole")


def copy(args: argparse.Namespace) -> int:
    source, destination = place(args.source), place(args.destination)
    if (source is None) == (destination is None):
        raise Usage("one of SRC and DST must be SESSION:PATH, the other a path here")
    label = paths.last_name(args.source if source is None else source.path) or args.source
    try:
        with shown(label, args.quiet or STREAM in (args.source, args.destination)) as progress:
            if destination is not None:
                done = send(destination.sandbox(args), args.source, destination, progress)
            elif source is not None:
                done = fetch(source.sandbox(args), source, args.destination, progress)
    except OSError as error:
        if isinstance(error, (SandboxError, BrokenPipeError)):
            raise
        complain(error)
        return PROBLEM
    _tell_skipped(done)
    return 0


def send(sandbox: SandboxClient, local: str, target: Place, progress: Progress | None) -> Transfer:
    if local == STREAM:
        info = sandbox.files.write(target.path, sys.stdin.buffer)
        return Transfer(info.path, files=1, bytes=info.size)
    remote = target.path
    if os.path.isdir(local) and not _only_content(local) and _is_directory(sandbox, remote):
        remote = paths.joined(remote, Path(local).resolve().name)
    return sandbox.upload(local, remote, progress=progress)


def fetch(sandbox: SandboxClient, source: Place, local: str, progress: Progress | None) -> Transfer:
    if local == STREAM:
        for piece in sandbox.files.read_stream(source.path):
            sys.stdout.buffer.write(piece)
        return Transfer(local, files=1)
    name = paths.last_name(source.path)
    if name and not _only_content(source.path) and os.path.isdir(local):
        local = os.path.join(local, name)
    return sandbox.download(source.path, local, progress=progress)


def _only_content(path: str) -> bool:
    return path == "." or path.endswith("/.")


def _is_directory(sandbox: SandboxClient, path: str) -> bool:
    try:
        return sandbox.files.stat(path, follow=True).is_directory
    except FileNotFound:
        return False


def _tell_skipped(done: Transfer) -> None:
    """As with tar this is no failure: what leads outside means nothing on the other side."""
    names = [one_line(name) for name in done.skipped[:NAMED]]
    more = max(done.skipped_count, len(done.skipped)) - len(names)
    if names or more:
        told = ", ".join([*names, *([f"{more} more"] if more else [])])
        complain(f"left out, as links that lead outside or no plain files: {told}")
