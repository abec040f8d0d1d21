"""The web application in this process, and how the owner of a key calls it. No keeper runs behind it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from server.store import Store


@dataclass(frozen=True)
class Web:
    http: FlaskClient
    key: str
    store: Store

    def post(self, path: str, body: Any = None, data: bytes | None = None, **headers: str) -> TestResponse:
        given = {
            "Authorization": f"Bearer {self.key}",
            **{n.replace("_", "-"): v for n, v in headers.items()},
        }
        if data is not None:
            return self.http.post(path, data=data, headers={"Content-Type": "application/json", **given})
        return self.http.post(path, json=body, headers=given)

    def get(self, path: str, **headers: str) -> TestResponse:
        return self.http.get(path, headers={"Authorization": f"Bearer {self.key}", **headers})
