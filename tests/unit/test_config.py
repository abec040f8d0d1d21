"""Configuration: anything unknown or malformed stops the start with the name in the message."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import FrozenInstanceError, fields
from pathlib import Path

import pytest

from server.config import BadConfig, Config, load

ROOT = Path(__file__).resolve().parents[2]


def test_every_default_loads() -> None:
    config = load({"SANDBOX_STATE_DIR": "/x"})
    assert (config.timeout, config.lease, config.default_image) == (30, 3600, "default")


def test_the_configuration_cannot_be_changed_later() -> None:
    with pytest.raises(FrozenInstanceError):
        load({}).memory = 1  # type: ignore[misc]


@pytest.mark.parametrize("name", ["SANDBOX_MEMROY", "SANDBOX_", "SANDBOX_memory", "SANDBOX_MEMORY_"])
def test_an_unknown_name_is_refused_by_name(name: str) -> None:
    with pytest.raises(BadConfig, match=name):
        load({name: "1"})


def test_other_peoples_variables_and_the_clients_own_are_left_alone() -> None:
    load({"SANDBOX_URL": "http://x", "SANDBOX_API_KEY": "k", "PATH": "/bin", "XSANDBOX_A": "1"})


@pytest.mark.parametrize(
    ("name", "raw"),
    [
        ("BIND", "5000"),
        ("BIND", "127.0.0.1:99999"),
        ("BIND", ":5000"),
        ("BIND", "127.0.0.1:http"),
        ("WEB_WORKERS", "0"),
        ("WEB_WORKERS", "two"),
        ("WEB_WORKERS", "1.5"),
        ("IMAGES", ""),
        ("IMAGES", "default"),
        ("IMAGES", "default="),
        ("IMAGES", "bad name=x"),
        ("MEMORY", "lots"),
        ("MEMORY", "-1"),
        ("MEMORY", "0"),
        ("MEMORY", "1.5g"),
        ("MEMORY", ""),
        ("CPUS", "0"),
        ("CPUS", "nan"),
        ("CPUS", "many"),
        ("LEASE", "0"),
        ("LEASE", "-5"),
        ("LEASE", "inf"),
        ("LEASE", "1h"),
        ("TIMEOUT", "soon"),
        ("SESSIONS_MAX", "0"),
        ("HOSTS", " , "),
        ("LOG_FORMAT", "xml"),
        ("LOG_LEVEL", "loud"),
        ("RATE_READ", "a lot"),
        ("RATE_READ", ""),
        ("FAILURE_LIMIT", "sixty"),
        ("STATE_DIR", "relative/path"),
    ],
)
def test_a_malformed_value_is_refused_with_the_name_and_the_value(name: str, raw: str) -> None:
    with pytest.raises(BadConfig) as caught:
        load({f"SANDBOX_{name}": raw})
    assert f"SANDBOX_{name}" in str(caught.value)


@pytest.mark.parametrize(
    ("raw", "size"), [("1", 1), ("512m", 512 << 20), ("2G", 2 << 30), ("3k", 3072), ("4mb", 4 << 20)]
)
def test_sizes_have_units(raw: str, size: int) -> None:
    assert load({"SANDBOX_DISK": raw}).disk == size


@pytest.mark.parametrize("name", ["MEMORY", "CPUS", "LEASE", "TIMEOUT"])
def test_a_default_above_its_maximum_is_refused(name: str) -> None:
    with pytest.raises(BadConfig, match=f"SANDBOX_{name}"):
        load(
            {f"SANDBOX_{name}": "900000000", f"SANDBOX_{name}_MAX": "1"}
            if name != "CPUS"
            else {"SANDBOX_CPUS": "9"}
        )


def test_image_references_are_taken_as_they_are() -> None:
    """Tags are case-sensitive."""
    config = load(
        {"SANDBOX_IMAGES": "default=registry.example:5000/Some/image:V1.2-RC, data=other@sha256:ab"}
    )
    assert config.images == {"default": "registry.example:5000/Some/image:V1.2-RC", "data": "other@sha256:ab"}
    assert config.default_image == "default"


def test_a_state_directory_too_long_for_a_socket_is_refused() -> None:
    with pytest.raises(BadConfig, match="SANDBOX_STATE_DIR"):
        load({"SANDBOX_STATE_DIR": "/" + "x" * 100})


def test_every_field_says_what_it_means() -> None:
    assert all(setting.metadata["meaning"] for setting in fields(Config))


@pytest.mark.parametrize("command", [["-m", "server.keeper"], ["-m", "server.ctl", "config"]])
def test_a_bad_setting_stops_the_start_with_one_clear_line(command: list[str]) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("SANDBOX_")}
    done = subprocess.run(
        [sys.executable, *command],
        env={**env, "SANDBOX_TIEMOUT": "5", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=20,
    )
    assert done.returncode == 1
    assert "SANDBOX_TIEMOUT" in done.stderr
    assert "Traceback" not in done.stderr
