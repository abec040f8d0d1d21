"""Calls to the engine are counted: those it refuses or leaves unanswered, and none that are ordinary."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from server import config as configuration
from server.keeper.runtime import RuntimeFailed
from server.keeper.runtime.docker import DockerRuntime


class Engine(BaseHTTPRequestHandler):
    """Says its version, knows no container, hangs up when asked for an image, and is too ill for the rest."""

    def do_GET(self) -> None:
        if self.path.endswith("/version"):
            self._answer(200, {"ApiVersion": "1.41", "MinAPIVersion": "1.12"})
        elif "/containers/sandbox-" in self.path:
            self._answer(404, {"message": "No such container"})
        elif "/images/" not in self.path:
            self._answer(500, {"message": "no space left on device"})

    def _answer(self, status: int, told: dict[str, str]) -> None:
        body = json.dumps(told).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def address_string(self) -> str:
        return "-"

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[str]:
    server = socketserver.ThreadingUnixStreamServer(str(tmp_path / "engine.sock"), Engine)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"unix://{tmp_path}/engine.sock"
    server.shutdown()
    server.server_close()


def test_an_ill_engine_is_noticed_and_an_ordinary_answer_is_no_error(engine: str, tmp_path: Path) -> None:
    heard: list[str | None] = []
    config = configuration.load({"SANDBOX_STATE_DIR": str(tmp_path), "SANDBOX_DOCKER_HOST": engine})
    runtime = DockerRuntime(config, "test", 0, lambda seconds, failure: heard.append(failure))
    assert runtime.inspect("a" * 32) is None
    with pytest.raises(RuntimeFailed):
        list(runtime.seen())
    with pytest.raises(RuntimeFailed):
        runtime.image_id("any")
    runtime._api.close()
    assert heard == [None, "refused", "silent"]
