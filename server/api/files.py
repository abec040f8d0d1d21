"""/v1/sessions/{id}/files: what is there, and what is done with it. `contents` is for what is in it."""

from __future__ import annotations

import base64

from flask import Blueprint, Response, jsonify

from server.api import file_models as models
from server.api import parse
from server.api.file_names import entry_as_json, path_as_json, query_of, query_text
from server.api.wiring import key, named, parts, tenant
from server.file_answers import Entry, Page
from server.guest_files_client import Listing
from server.tickets import file_binding
from server.times import timestamp

bp = Blueprint("files", __name__)


@bp.get("/v1/sessions/<session_id>/files")
def list_files(session_id: str) -> Response:
    asked, path = query_of(models.ListFiles)
    at = b"" if asked.cursor is None else models.decoded(asked.cursor)
    wanted = Listing(path, asked.depth, asked.glob, at, asked.limit)
    whose = tenant(), named(session_id)
    unread, leave = parts().files.begin(*whose, lambda files, guest: files.list(guest, wanted))
    try:
        with parts().turns.taken(tenant(), unread.size):
            page = unread.read()
            entries = [entry_as_json(entry) for entry in page.entries]
            return jsonify({**path_as_json(page.path), "entries": entries, "next_cursor": _cursor(page)})
    finally:
        leave()


@bp.get("/v1/sessions/<session_id>/files/stat")
def stat(session_id: str) -> Response:
    asked, path = query_of(models.StatFile)
    return _told(
        parts().files.ask(
            tenant(), named(session_id), lambda files, guest: files.stat(guest, path, asked.follow)
        )
    )


@bp.delete("/v1/sessions/<session_id>/files")
def delete_file(session_id: str) -> tuple[str, int]:
    asked, path = query_of(models.DeleteFile)
    parts().files.wait(
        tenant(), named(session_id), lambda files, guest: files.delete(guest, path, asked.recursive)
    )
    return "", 204


@bp.post("/v1/sessions/<session_id>/files/mkdir")
def make_directory(session_id: str) -> tuple[Response, int]:
    asked = parse.body_of(models.MakeDirectory)
    path, mode = asked.place, models.number_of(asked.mode)
    entry, new = parts().files.ask(
        tenant(),
        named(session_id),
        lambda files, guest: files.make_directory(guest, path, asked.parents, mode),
    )
    return _told(entry), 201 if new else 200


@bp.post("/v1/sessions/<session_id>/files/move")
def move(session_id: str) -> Response:
    asked = parse.body_of(models.MoveFile)
    source, destination = asked.places
    return _told(
        parts().files.wait(
            tenant(),
            named(session_id),
            lambda files, guest: files.move(guest, source, destination, asked.overwrite),
        )
    )


@bp.post("/v1/sessions/<session_id>/files/copy")
def copy(session_id: str) -> Response:
    asked = parse.body_of(models.CopyFile)
    source, destination = asked.places
    return _told(
        parts().files.wait(
            tenant(),
            named(session_id),
            lambda files, guest: files.copy(guest, source, destination, asked.overwrite, asked.recursive),
        )
    )


@bp.post("/v1/sessions/<session_id>/files/edit")
def edit(session_id: str) -> Response:
    with parts().large_bodies.place():
        asked = parse.body_of(models.EditFile)
    path = asked.place
    edited = parts().files.wait(
        tenant(),
        named(session_id),
        lambda files, guest: files.edit(guest, path, asked.old, asked.new, asked.replace_all),
    )
    told = {"replacements": edited.replacements, "entry": entry_as_json(edited.entry)}
    return jsonify({**path_as_json(edited.entry.path), **told})


@bp.post("/v1/sessions/<session_id>/files/urls")
def create_url(session_id: str) -> tuple[Response, int]:
    asked = parse.body_of(models.NewFileUrl)
    session = parts().sessions.get(tenant(), named(session_id))
    path, bound = asked.place, file_binding(asked.place, asked.mode)
    ticket, until = parts().tickets.issue(
        asked.purpose, key().id, session.id, bound, asked.expires_in, key().expires_at
    )
    mode = "" if asked.mode is None else f"&mode={asked.mode}"
    url = f"/v1/sessions/{session.id}/files/content?path={query_text(path)}{mode}&ticket={ticket}"
    method = "GET" if asked.purpose == "download" else "PUT"
    return jsonify({"url": url, "method": method, "expires_at": timestamp(until)}), 201


def _cursor(page: Page) -> str | None:
    following = page.following
    return None if following is None else base64.urlsafe_b64encode(following).decode().rstrip("=")


def _told(entry: Entry) -> Response:
    response = jsonify(entry_as_json(entry))
    response.set_etag(entry.etag)
    return response
