"""/v1/sessions/{id}/files/archive: a directory as an archive, down and up, a piece at a time."""

from __future__ import annotations

from flask import Blueprint, Response, jsonify, request

from server import errors
from server.api import bulk_models as models
from server.api.file_names import disposition, path_as_json, query_of
from server.api.hangup import noticed
from server.api.transfers import body, overseen, permission, sent
from server.api.wiring import named, parts, tenant
from server.bulk_answers import Packed, Unpacked
from server.file_errors import TooLarge
from server.guest_files_client import shown

bp = Blueprint("archives", __name__)

_TYPES = {"tar": "application/x-tar", "tar.gz": "application/gzip", "zip": "application/zip"}
_FORMATS = {
    **{kind: format for format, kind in _TYPES.items()},
    "application/x-gzip": "tar.gz",
    "application/x-gtar": "tar",
    "application/x-compressed-tar": "tar.gz",
    "application/x-zip-compressed": "zip",
}
_WORTH_WATCHING = 1.0


@bp.get("/v1/sessions/<session_id>/files/archive")
def download_archive(session_id: str) -> Response:
    asked, path = query_of(models.GetArchive)
    limit, bulk = parts().config.download_limit, parts().bulk
    whose = tenant(), named(session_id)
    packing, leave = parts().files.begin(*whose, lambda _, guest: bulk.pack(guest, path, asked.format, limit))
    pieces = sent(packing.pieces(), parts().files.going_on(*whose), permission(session_id))
    response = Response(pieces, mimetype=_TYPES[asked.format])
    response.call_on_close(packing.close)
    response.call_on_close(leave)
    response.headers.update(_headers(packing.told, asked.format))
    return response


@bp.put("/v1/sessions/<session_id>/files/archive")
def upload_archive(session_id: str) -> Response:
    asked, path = query_of(models.PutArchive)
    limit, bulk, format = parts().config.upload_limit, parts().bulk, asked.format or _format()
    if (request.content_length or 0) > limit:
        raise TooLarge(shown(path), limit=limit)
    whose = tenant(), named(session_id)
    unpacking, leave = parts().files.begin(*whose, lambda _, guest: bulk.unpack(guest, path, format, limit))
    try:
        with parts().files.going_on(*whose), overseen(permission(session_id)):
            for piece in body(limit):
                unpacking.give(piece)
            with noticed(request.environ.get("gunicorn.socket"), _WORTH_WATCHING):
                done = unpacking.finish()
    finally:
        unpacking.close()
        leave()
    return jsonify(_as_json(done))


def _format() -> str:
    if request.mimetype not in _FORMATS:
        raise errors.Invalid("format", "Say which: format=tar, format=tar.gz or format=zip.")
    return _FORMATS[request.mimetype]


def _headers(told: Packed, format: str) -> dict[str, str]:
    return {
        "Content-Disposition": disposition(told.path + b"." + format.encode()),
        "Content-Security-Policy": "sandbox; default-src 'none'",  # as for any file of a stranger's
        "X-Archive-Entries": str(told.entries),
        "X-Archive-Bytes": str(told.size),
        "X-Archive-Skipped": str(told.skipped),
    }


def _as_json(done: Unpacked) -> dict[str, object]:
    skipped = [{**path_as_json(name), "reason": reason} for name, reason in done.skipped]
    return {
        **path_as_json(done.path),
        "files": done.files,
        "directories": done.directories,
        "bytes": done.size,
        "skipped": skipped,
        "skipped_count": done.skipped_count,
    }
