"""/v1/admin/keys: the operator's key manages all keys, a tenant's admin key those of its tenant."""

from __future__ import annotations

import time

from flask import Blueprint, Response, jsonify, request

from server.administered import key_as_json
from server.api import acts, admin_models, parse, scopes
from server.api.admin_tenants import within_reach
from server.api.wiring import key, parts
from server.keys import OPERATOR
from server.records import Key

bp = Blueprint("admin_keys", __name__)


@bp.post("/v1/admin/keys")
def create() -> tuple[Response, int]:
    asked = parse.body_of(admin_models.NewKey)
    if asked.tenant is None:
        scopes.need_operator()
    tenant = OPERATOR if asked.tenant is None else within_reach(asked.tenant)
    return _told_once(*parts().keys.create(tenant, asked.name, asked.scopes, asked.expires_in))


@bp.get("/v1/admin/keys")
def list_keys() -> Response:
    asked = parse.query_of(admin_models.ListKeys, request.args.to_dict())
    tenant = _reach() if asked.tenant is None else within_reach(asked.tenant)
    found, following = parts().keys.list(tenant, asked.cursor or "", asked.limit)
    return jsonify({"keys": [key_as_json(one, time.time()) for one in found], "next_cursor": following})


@bp.post("/v1/admin/keys/<key_id>/rotate")
def rotate(key_id: str) -> tuple[Response, int]:
    asked = parse.body_of(admin_models.RotateKey)
    return _told_once(*parts().keys.rotate(key_id, asked.grace, _reach()))


@bp.delete("/v1/admin/keys/<key_id>")
def revoke(key_id: str) -> tuple[str, int]:
    parts().keys.revoke(key_id, _reach())
    return "", 204


def _reach() -> str | None:
    """The tenant whose keys the caller may manage; None for the operator, who may all."""
    return key().tenant or None


def _told_once(made: Key, text: str) -> tuple[Response, int]:
    acts.note(new_key_id=made.id, scopes=sorted(made.scopes))
    return jsonify({**key_as_json(made, time.time()), "key": text}), 201
