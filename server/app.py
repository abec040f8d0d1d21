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
import time

from flask import Flask, Response, g, request
from flask_limiter import Limiter

from server import config as configuration
from server import instance as installation
from server.api import describe, executions, origins, problems, sessions, status, terminal, tickets
from server.api.auth import Gate, client_address
from server.api.parse import LargeBodies
from server.api.turns import Turns
from server.api.windows import WorkerStorage
from server.api.wiring import Parts
from server.config import Config
from server.detached import Detached
from server.executions import Executions
from server.guest_client import GuestClient
from server.keeper_client import KeeperClient
from server.logs import configure_logging
from server.readiness import Readiness
from server.sessions import Sessions
from server.store import Store
from server.tally import Tally
from server.tickets import Tickets

_REQUEST_ID = re.compile(r"[A-Za-z0-9_.-]{1,64}")

_log = logging.getLogger("sandbox.web")


def create_app(config: Config | None = None) -> Flask:
    config = config or configuration.load(os.environ)
    configure_logging(config)
    return build(config)


def build(config: Config) -> Flask:
    app = Flask("server", static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = config.body_limit
    app.json.sort_keys = False  # type: ignore[attr-defined] # Flask's provider has it
    app.url_map.strict_slashes = False
    store = Store(config.store_path)
    keeper = KeeperClient(config.keeper_socket)
    guests = GuestClient(config.output_limit, config.executions_max)
    instance = installation.load(config)
    domain = Sessions(config, instance, store, keeper, guests, time.time)
    tally = Tally(config.store_path.with_name("tally"), config.web_workers)
    running = Executions(config, domain, guests, Detached(store), tally, time.time)
    passes = Tickets(instance, store, time.time)
    app.extensions["sandbox"] = Parts(
        config, domain, running, passes, store.is_revoked, Readiness(store, keeper), LargeBodies(), Turns()
    )
    limiter = Limiter(client_address, storage_uri=f"{WorkerStorage.STORAGE_SCHEME[0]}://")
    app.extensions["limiter"] = {limiter}  # no hooks of its own around each request: the gate asks it
    limiter.init_app(app)
    _around_requests(app, config, Gate(config, store, passes, limiter))
    for blueprint in (sessions.bp, executions.bp, tickets.bp, terminal.bp, status.bp, describe.bp):
        app.register_blueprint(blueprint)
    problems.register(app)
    return app


def warm_up(config: Config) -> None:
    """Load what Python loads only when it is needed: by then a worker may not be able to read it."""
    for module in pkgutil.iter_modules(encodings.__path__, "encodings."):
        with contextlib.suppress(ImportError):  # those of other operating systems
            importlib.import_module(module.name)
    client = build(config).test_client()
    for path in ("/docs", "/openapi.json", "/healthz", "/v1/version", "/nowhere"):
        client.get(
            path, headers={"Host": config.hosts[0], "If-Modified-Since": "Thu, 01 Jan 1970 00:00:00 GMT"}
        )


def _around_requests(app: Flask, config: Config, gate: Gate) -> None:
    @app.before_request
    def before() -> None:
        given = request.environ.get("HTTP_X_REQUEST_ID", "")
        g.request_id = given if _REQUEST_ID.fullmatch(given) else f"{random.getrandbits(64):016x}"
        g.log = {"request_id": g.request_id, "began": time.monotonic()}
        gate.check()

    @app.after_request
    def after(response: Response) -> Response:
        fields = g.log
        response.headers.extend(problems.HEADERS)
        response.headers["X-Request-Id"] = fields["request_id"]
        origins.allow(response, config)
        fields["method"] = request.method
        fields["route"] = str(request.url_rule or "")
        fields["status"] = response.status_code
        fields["ms"] = round((time.monotonic() - fields.pop("began")) * 1000, 2)
        fields["address"] = client_address()
        _log.info("request", extra={"fields": fields})
        return response
