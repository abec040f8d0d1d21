"""/v1/admin/tenants: the operator's, except that a tenant's own admin may look at itself."""

from __future__ import annotations

from flask import Blueprint, Response, jsonify, request

from server.administered import tenant_as_json
from server.api import acts, admin_models, parse, session_models
from server.api.wiring import key, parts
from server.keys import OPERATOR
from server.tenant_errors import TenantNotFound

bp = Blueprint("admin_tenants", __name__)


@bp.post("/v1/admin/tenants")
def create() -> tuple[Response, int]:
    asked = parse.body_of(admin_models.NewTenant)
    acts.note(limits=asked.limits)
    return jsonify(tenant_as_json(parts().tenants.create(asked.tenant, asked.limits))), 201


@bp.get("/v1/admin/tenants")
def list_tenants() -> Response:
    asked = parse.query_of(admin_models.ListTenants, request.args.to_dict())
    found, following = parts().tenants.list(asked.cursor or "", asked.limit)
    return jsonify({"tenants": [tenant_as_json(one) for one in found], "next_cursor": following})


@bp.get("/v1/admin/tenants/<name>")
def get(name: str) -> Response:
    return jsonify(tenant_as_json(parts().tenants.get(within_reach(name))))


@bp.patch("/v1/admin/tenants/<name>")
def change(name: str) -> Response:
    asked = parse.body_of(admin_models.ChangeTenant)
    acts.note(limits=asked.limits)
    return jsonify(tenant_as_json(parts().tenants.change_limits(name, asked.limits)))


@bp.get("/v1/admin/tenants/<name>/usage")
def usage(name: str) -> Response:
    return jsonify({"tenant": name, **parts().tenants.usage(within_reach(name))})


@bp.post("/v1/admin/tenants/<name>/suspend")
def suspend(name: str) -> Response:
    parse.body_of(session_models.NoFields)
    return jsonify(tenant_as_json(parts().tenants.suspend(name)))


@bp.post("/v1/admin/tenants/<name>/resume")
def resume(name: str) -> Response:
    parse.body_of(session_models.NoFields)
    return jsonify(tenant_as_json(parts().tenants.resume(name)))


@bp.delete("/v1/admin/tenants/<name>")
def delete(name: str) -> tuple[str, int]:
    parts().tenants.delete(name)
    return "", 204


def within_reach(name: str) -> str:
    """The operator's key reaches every tenant, a tenant's own admin key that one: others are not there."""
    if key().tenant not in (OPERATOR, name):
        raise TenantNotFound
    return name
