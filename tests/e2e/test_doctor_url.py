"""`sandboxctl doctor --url`: the way that clients take, through a real nginx that is right or wrong."""

from __future__ import annotations

import json
import subprocess

import pytest
from stack import Stack

from tests.e2e.front import Front, fronting, program


@pytest.fixture(scope="module")
def nginx(tmp_path_factory: pytest.TempPathFactory) -> str:
    place = tmp_path_factory.mktemp("nginx")
    place.chmod(0o755)
    return program(place)


def examined(stack: Stack, front: Front, url: str | None = None) -> dict[str, dict[str, str]]:
    env = {**stack.env, "SANDBOX_API_KEY": stack.key, "SSL_CERT_FILE": front.ca}
    command = [stack.python, "-m", "server.ctl", "doctor", "--json", "--url", url or front.url]
    done = subprocess.run(command, env=env, cwd=stack.root, capture_output=True, text=True, timeout=120)
    assert stack.key not in done.stdout + done.stderr
    return {finding["id"]: finding for finding in json.loads(done.stdout)["findings"]}


def test_the_shipped_configuration_lets_events_through_as_they_happen(nginx: str, stack: Stack) -> None:
    with fronting(nginx, stack.port) as front:
        found = examined(stack, front)
    ids = ("https", "tls", "certificate", "answers", "hsts", "stream")
    assert {name: found[f"public.{name}"]["severity"] for name in ids} == dict.fromkeys(ids, "ok")


def test_a_proxy_that_collects_answers_first_is_found(nginx: str, stack: Stack) -> None:
    wrong = {"proxy_buffering off;": "proxy_buffering on; proxy_ignore_headers X-Accel-Buffering;"}
    with fronting(nginx, stack.port, wrong) as front:
        found = examined(stack, front)
    assert (found["public.stream"]["severity"], found["public.answers"]["severity"]) == ("major", "ok")


def test_a_certificate_of_another_name_is_critical(nginx: str, stack: Stack) -> None:
    with fronting(nginx, stack.port) as front:
        found = examined(stack, front, f"https://127.1:{front.tls}")
    assert found["public.answers"]["severity"] == "critical"
    assert "CERTIFICATE_VERIFY_FAILED" in found["public.answers"]["found"]
