"""/readyz in process: who gets the engine's words, and what a key changes."""

from __future__ import annotations

import pytest
from web_in_process import Web

from server.config import Config


@pytest.fixture
def spoilt(web: Web, config: Config) -> Web:
    """Its database has become garbage."""
    assert web.get("/v1/sessions").status_code == 200
    for path in config.store_path.parent.glob("store.db*"):
        path.write_bytes(b"garbage" * 20_000)
    return web


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer e2b_" + "0" * 80}])
def test_without_a_store_everybody_is_a_stranger(spoilt: Web, headers: dict[str, str]) -> None:
    """Never a 500: what is wrong is told, with or without a key."""
    answer = spoilt.http.get("/readyz", headers=headers)
    assert answer.status_code == 503, answer.text
    assert "words" not in answer.json
    own = spoilt.get("/readyz")
    assert own.status_code == 503 and own.json["status"] == "unavailable"


def test_a_wrong_key_is_refused(web: Web) -> None:
    assert web.http.get("/readyz", headers={"X-API-Key": "e2b_" + "0" * 80}).status_code == 401
