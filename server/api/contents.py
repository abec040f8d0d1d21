"""/v1/sessions/{id}/files/content: what is in a file, down and up, a piece at a time."""

from __future__ import annotations

from flask import Blueprint, Response, g, jsonify, request
from werkzeug.http import http_date

from server import errors
from server.api import file_models as models
from server.api.file_names import content_type, disposition, entry_as_json, query_of
from server.api.transfers import body, overseen, permission, sent
from server.api.wiring import named, parts, tenant
from server.file_answers import Entry
from server.file_errors import RangeNotSatisfiable, TooLarge
from server.guest_files_client import Reading, Upload, shown

bp = Blueprint("contents", __name__)

_HEADERS = {
    "Accept-Ranges": "bytes",
    # A file is a stranger's: a browser that shows it nevertheless may run nothing of it.
    "Content-Security-Policy": "sandbox; default-src 'none'",
}


@bp.get("/v1/sessions/<session_id>/files/content")
def download(session_id: str) -> Response:
    _, path = query_of(models.GetContent)
    whose = tenant(), named(session_id)
    reading, leave = parts().files.begin(*whose, lambda files, guest: files.read(guest, path))
    try:
        response = _answer(reading, whose)
        if response.status_code != 304 and request.method != "HEAD":
            _spend_ticket()
    except BaseException:
        reading.close()
        leave()
        raise
    response.call_on_close(reading.close)
    response.call_on_close(leave)
    return response


@bp.put("/v1/sessions/<session_id>/files/content")
def upload(session_id: str) -> tuple[Response, int]:
    asked, path = query_of(models.PutContent)
    limit = parts().config.upload_limit
    if (request.content_length or 0) > limit:
        raise TooLarge(shown(path), limit=limit)
    mode, tags = models.number_of(asked.mode), _match()
    wanted = Upload(path, mode, asked.parents, _create_only(), tags, limit)
    whose = tenant(), named(session_id)
    writing, leave = parts().files.begin(*whose, lambda files, guest: files.write(guest, wanted))
    try:
        _spend_ticket()
        with parts().files.going_on(*whose), overseen(permission(session_id)):
            for piece in body(limit):
                writing.give(piece)
            entry, new = writing.finish()
    finally:
        writing.close()
        leave()
    response = jsonify(entry_as_json(entry))
    response.set_etag(entry.etag)
    return response, 201 if new else 200


def _spend_ticket() -> None:
    """Once, and only when all that can be refused has been."""
    if "ticket" in g and not parts().tickets.spend(g.ticket):
        raise errors.Unauthorized


def _match() -> list[str] | None:
    if "If-Match" not in request.headers:
        return None
    tags = request.if_match
    return ["*"] if tags.star_tag else sorted(tags.as_set())


def _create_only() -> bool:
    if "If-None-Match" not in request.headers:
        return False
    if not request.if_none_match.star_tag:
        raise errors.Invalid("If-None-Match", "Only * is understood here: create, do not replace.")
    return True


def _answer(reading: Reading, whose: tuple[str, str]) -> Response:
    entry = reading.entry
    if request.if_none_match.contains_weak(entry.etag):
        unchanged = Response(status=304)
        del unchanged.headers["Content-Type"]
        return _described(unchanged, entry)
    begin, end, partial = _range(entry)
    limit = parts().config.download_limit
    if end - begin > limit and request.method != "HEAD":
        raise TooLarge(shown(entry.path), limit=limit)
    pieces = sent(reading.pieces(begin, end), parts().files.going_on(*whose), permission(whose[1]))
    response = Response(pieces, 206 if partial else 200)
    response.headers["Content-Type"] = content_type(entry.path)
    response.headers["Content-Length"] = str(end - begin)
    response.headers["Content-Disposition"] = disposition(entry.path)
    if partial:
        response.headers["Content-Range"] = f"bytes {begin}-{end - 1}/{entry.size}"
    return _described(response, entry)


def _described(response: Response, entry: Entry) -> Response:
    response.headers.update(_HEADERS)
    response.set_etag(entry.etag)
    response.headers["Last-Modified"] = http_date(max(0, entry.modified_at))
    return response


def _range(entry: Entry) -> tuple[int, int, bool]:
    """Which bytes, and whether they are a part that was asked for. Ranges of other kinds are not heeded."""
    wanted = request.range
    if wanted is None or wanted.units != "bytes" or len(wanted.ranges) != 1:
        return 0, entry.size, False
    condition = request.headers.get("If-Range")
    if condition is not None and condition != f'"{entry.etag}"':
        return 0, entry.size, False
    begin, end = wanted.ranges[0]
    begin = max(0, entry.size + begin) if begin < 0 else begin
    end = entry.size if end is None else min(end, entry.size)
    if begin >= end:
        raise RangeNotSatisfiable(shown(entry.path), size=entry.size)
    return begin, end, True
