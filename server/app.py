"""The web side: `build` puts the parts together, `create_app` is what gunicorn loads."""

from __future__ import annotations

import contextlib
import encodings
import importlib
import logging
import os
import pkgutil
import random
import re
import tempfile
import time
from functools import partial
from pathlib import Path

from flask import Flask, Response, g, request

from server import config as configuration
from server import instance as installation
from server.api import (
    acts,
    admin_doctor,
    admin_keys,
    admin_leaks,
    admin_tenants,
    archives,
    audit,
    contents,
    docs,
    executions,
    files,
    limits_shown,
    metrics,
    origins,
    problems,
    run,
    searching,
    sessions,
    snapshots,
    status,
    terminal,
    tickets,
    traffic,
    uploads,
    watching,
    workspaces,
)
from server.api.apart import Apart
from server.api.auth import Gate, client_address
from server.api.limiting import Limiting, limiting
from server.api.metering import meter
from server.api.parse import SMALL_BODY, LargeBodies
from server.api.turns import Turns
from server.api.wiring import Parts
from server.audit.journal import Journal
from server.audit.ledger import Ledger
from server.audit.outbox import carry_over
from server.census import Census
from server.config import Config
from server.counts import Counts
from server.executions import Executions
from server.exposition import Exposition
from server.files import Files
from server.guest_bulk_client import GuestBulk
from server.guest_client import GuestClient
from server.guest_files_client import GuestFiles
from server.keeper_client import KeeperClient
from server.keys import Keys
from server.logs import configure_logging
from server.meters import Meters
from server.placing import Placing
from server.presence import Presence
from server.readiness import Readiness
from server.run_rows import RunRows
from server.runs import Runs
from server.session_metrics import SessionMetrics
from server.sessions import Sessions
from server.snapshots import Snapshots
from server.spending import Spending
from server.spool import Spool
from server.store import Store
from server.tenants import Tenants
from server.tickets import Tickets
from server.upload_rows import UploadRows
from server.uploads import Uploads
from server.volume_rows import VolumeRows
from server.workspaces import Workspaces

_REQUEST_ID = re.compile(r"[A-Za-z0-9_.-]{1,64}")

_log = logging.getLogger("sandbox.web")


def create_app(config: Config | None = None) -> Flask:
    config = config or configuration.load(os.environ)
    configure_logging(config)
    places = 2 * config.web_workers + 2  # at a reload the old workers and the new ones live side by side
    return build(config, Counts(config.store_path.with_name("metrics"), places))


def build(config: Config, counts: Counts | None = None, rates: Path | None = None) -> Flask:
    """Without `counts`, which only a worker has, nothing that is counted is kept.

    `rates` is the file in which requests are counted, if it is another than that of all workers.
    """
    app = Flask("server", static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = min(SMALL_BODY, config.body_limit)
    app.json.sort_keys = False  # type: ignore[attr-defined] # Flask's provider has it
    app.url_map.strict_slashes = False
    store = Store(config.store_path)
    keeper = KeeperClient(config.keeper_socket)
    limits = limiting(app, config, store, keeper.disk_used, rates)
    parts = _put_together(config, store, keeper, counts or Counts(None, 0), limits)
    app.extensions["sandbox"] = parts
    acts.register(app)
    _around_requests(app, config, Gate(config, parts.keys, parts.tickets, limits.rates), parts.meters)
    for module in _ROUTES:
        app.register_blueprint(module.bp)
    problems.register(app)
    return app


_ROUTES = (
    sessions,
    executions,
    run,
    files,
    contents,
    archives,
    searching,
    watching,
    snapshots,
    workspaces,
    uploads,
    tickets,
    terminal,
    limits_shown,
    metrics,
    audit,
    admin_tenants,
    admin_keys,
    admin_doctor,
    status,
    docs,
    admin_leaks,
)


def _put_together(
    config: Config, store: Store, keeper: KeeperClient, counts: Counts, limits: Limiting
) -> Parts:
    guests = GuestClient(config.output_limit, config.executions_max)
    instance = installation.load(config)
    present = Presence(config.presence_path)
    domain = Sessions(config, instance, store, keeper, guests, present, time.time, limits.quotas.admit)
    spending = Spending(store, domain, present, time.time)
    rows = VolumeRows(store)
    kept = Snapshots(config, domain, rows, keeper, time.time)
    counting = (limits.detached, limits.concurrency, limits.usage)
    running = Executions(config, domain, spending, guests, *counting, kept.checkpoint, time.time)
    apart = Apart()
    keys = Keys(store, time.time)
    sent = Uploads(config, UploadRows(store), time.time, apart)
    ledger = Ledger(config.audit_path, instance.audit_key)
    return Parts(
        config=config,
        journal=Journal(ledger, time.time),
        carry_over=partial(carry_over, store, ledger),
        sessions=domain,
        spending=spending,
        executions=running,
        runs=Runs(spending, running, RunRows(store, time.time)),
        files=Files(domain, GuestFiles(guests), running.enter_stream, time.time),
        bulk=GuestBulk(guests),
        snapshots=kept,
        workspaces=Workspaces(config, domain, rows, keeper),
        tickets=Tickets(instance, store, time.time),
        tenants=Tenants(store, keeper, time.time),
        keys=keys,
        doctor=keeper.doctor,
        is_revoked=keys.is_over,
        readiness=Readiness(store, keeper),
        large_bodies=LargeBodies(config.body_limit),
        spool=Spool(),
        turns=Turns(),
        uploads=sent,
        placing=Placing(domain, sent, GuestFiles(guests), apart),
        limits=limits,
        leaks=keeper.leaks,
        meters=Meters(counts),
        exposition=Exposition(counts, Census(store, limits.tally, time.time), keeper),
        session_metrics=SessionMetrics(domain, keeper),
    )


def warm_up(config: Config) -> None:
    """Load what Python loads only when it is needed: by then a worker may not be able to read it."""
    for module in pkgutil.iter_modules(encodings.__path__, "encodings."):
        with contextlib.suppress(ImportError):  # those of other operating systems
            importlib.import_module(module.name)
    headers = {"Host": config.hosts[0], "If-Modified-Since": "Thu, 01 Jan 1970 00:00:00 GMT"}
    with tempfile.TemporaryDirectory() as place:  # the real file is the workers' own
        client = build(config, rates=Path(place, "rates")).test_client()
        for path in ("/docs", "/openapi.json", "/healthz", "/v1/version", "/nowhere"):
            client.get(path, headers=headers, environ_overrides={"sandbox.rehearsal": True})


def _around_requests(app: Flask, config: Config, gate: Gate, meters: Meters) -> None:
    @app.before_request
    def before() -> None:
        given = request.environ.get("HTTP_X_REQUEST_ID", "")
        g.request_id = given if _REQUEST_ID.fullmatch(given) else f"{random.getrandbits(64):016x}"
        g.log = {"request_id": g.request_id, "began": time.monotonic(), "address": client_address()}
        acts.begin(config)
        traffic.count_body()
        gate.check()
        acts.check()

    @app.after_request
    def after(response: Response) -> Response:
        fields = g.log
        for name, value in problems.HEADERS.items():
            response.headers.setdefault(name, value)
        response.headers["X-Request-Id"] = fields["request_id"]
        origins.allow(response, config)
        if "standing" in g:
            g.standing.tell(response)
        traffic.count_answer(response)
        fields["method"] = request.method
        fields["route"] = str(request.url_rule or "")
        fields["status"] = response.status_code
        meter(meters, response, fields)
        fields["ms"] = round((time.monotonic() - fields.pop("began")) * 1000, 2)
        acts.end(response)
        _log.info("request", extra={"fields": fields})
        return response
