"""Files that are uploaded before there is a session to put them into: POST /upload gives each an id."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from .commands import new_id
from .connection import Ask, Connection
from .file_infos import UploadInfo, upload_info
from .outgoing import Outgoing, read_exactly
from .transfers import LocalPath

UPLOAD_TIME = 60.0


async def upload(connection: Connection, files: Sequence[LocalPath]) -> list[UploadInfo]:
    """Upload files of this machine, in one request."""
    boundary = new_id()
    body = await connection.wire.apart(partial(_multipart, [Path(file) for file in files], boundary))
    ask = Ask(
        "POST",
        "/upload",
        idempotency_key=new_id(),
        work_time=UPLOAD_TIME,
        content=body,
        headers={"Content-Type": f"multipart/form-data; boundary={boundary}"},
    )
    answer = await connection.ask(ask)
    return [upload_info(item) for item in answer.get("files") or ()]


async def file_ids(connection: Connection, files: Sequence[LocalPath]) -> list[str]:
    """Ids as they are, and those of local files, which are uploaded."""
    local = [file for file in files if not is_id(file)]
    uploaded = iter(await upload(connection, local) if local else ())
    return [str(file) if is_id(file) else next(uploaded).file_id for file in files]


def is_id(file: Any) -> bool:
    """Whether this is an upload's id, and not a file of this machine."""
    looks_so = isinstance(file, str) and re.fullmatch(r"[A-Za-z0-9_-]{8,200}", file) is not None
    return looks_so and not os.path.exists(file)


def _multipart(files: Sequence[Path], boundary: str) -> Outgoing:
    heads = [_head(file, boundary) for file in files]
    end = f"--{boundary}--\r\n".encode()
    sizes = [file.stat().st_size for file in files]
    size = sum(map(len, heads)) + sum(sizes) + len(files) * len(b"\r\n") + len(end)

    def pieces() -> Iterator[bytes]:
        for head, file, length in zip(heads, files, sizes):
            yield head
            with file.open("rb") as opened:
                yield from read_exactly(opened, length)
            yield b"\r\n"
        yield end

    return Outgoing(pieces, size, again=True)


def _head(file: Path, boundary: str) -> bytes:
    name = os.fsencode(file.name)
    for letter, encoded in ((b'"', b"%22"), (b"\r", b"%0D"), (b"\n", b"%0A")):  # as browsers write it
        name = name.replace(letter, encoded)
    about = b'Content-Disposition: form-data; name="file"; filename="%s"' % name
    return b"--%s\r\n%s\r\nContent-Type: application/octet-stream\r\n\r\n" % (boundary.encode(), about)
