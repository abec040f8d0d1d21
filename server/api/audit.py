"""/v1/audit: what was done with a tenant's keys and to its sessions, page by page or as one export."""

from __future__ import annotations

from collections.abc import Iterator

import gevent
from flask import Blueprint, Response, request

from server.api import audit_models, parse, streaming
from server.api.wiring import parts, tenant
from server.audit.ledger import LedgerFailed
from server.audit.search import Page, Query, page, pages
from server.errors import StoreUnavailable

bp = Blueprint("audit", __name__)
_AT_ONCE = 1000
_JSON, _NDJSON = "application/json", "application/x-ndjson"


@bp.get("/v1/audit")
def list_audit() -> Response:
    return _answer(tenant(), parse.query_of(audit_models.ListAudit, request.args.to_dict()))


@bp.get("/v1/admin/audit")
def list_any() -> Response:
    """The operator's: of any tenant, of the installation itself, and of those without a key."""
    asked = parse.query_of(audit_models.ListAnyAudit, request.args.to_dict())
    return _answer(asked.chain, asked)


def _answer(chain: str, asked: audit_models.ListAudit) -> Response:
    query = _query(asked)
    if request.accept_mimetypes.best_match([_JSON, _NDJSON], _JSON) == _NDJSON:
        return _export(chain, query, asked.cursor)
    try:
        parts().carry_over()  # what has ended by itself a moment ago
        found = page(parts().journal.ledger, chain, query, asked.cursor, asked.limit)
    except LedgerFailed as exc:
        raise StoreUnavailable("The audit cannot be read right now. Try again shortly.") from exc
    cursor = "null" if found.cursor is None else str(found.cursor)
    body = f'{{"records":[{",".join(found.lines)}],"next_cursor":{cursor}}}\n'
    return Response(body, mimetype=_JSON)


def _query(asked: audit_models.ListAudit) -> Query:
    return Query(
        since=asked.since,  # type: ignore[arg-type] # the validator has made a text of it
        until=asked.until,  # type: ignore[arg-type]
        action=asked.action,
        session=asked.session,
        user=asked.user,
        actor=asked.actor,
        outcome=asked.outcome,
        newest_first=asked.order == "desc",
    )


def _export(chain: str, query: Query, cursor: int | None) -> Response:
    """All that match, a record a line; cut off rather than ended where it cannot be read to its end."""
    leave = parts().executions.enter_stream(tenant(), None)
    found = pages(parts().journal.ledger, chain, query, cursor, _AT_ONCE, lambda: gevent.sleep(0))
    whose = streaming.caller()
    response = Response(whose.delivered(_lines(found), lambda _: b""), mimetype=_NDJSON)
    response.call_on_close(leave)
    response.headers["Content-Disposition"] = 'attachment; filename="audit.ndjson"'
    response.headers["X-Accel-Buffering"] = "no"
    return response


def _lines(found: Iterator[Page]) -> Iterator[bytes]:
    try:
        for one in found:
            yield "".join(f"{line}\n" for line in one.lines).encode()
    except LedgerFailed as exc:
        raise ConnectionResetError(str(exc)) from exc
