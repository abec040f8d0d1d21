"""What a stranger may ask for without a key costs nothing the second time."""

from __future__ import annotations

import time

import pytest
from web_in_process import Web


@pytest.mark.parametrize("path", ["/docs", "/openapi.json"])
def test_the_description_is_written_once(web: Web, path: str) -> None:
    began = time.process_time()
    first = web.http.get(path)
    once = time.process_time() - began
    again = [web.http.get(path) for _ in range(5)]
    assert time.process_time() - began < 2 * once, "five more together cost less than the first"
    assert (first.status_code, {answer.data for answer in again}) == (200, {first.data})
