"""sandboxctl: what an operator types, what is printed, and the exit codes that scripts go by."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from stack import ROOT

from server.config import Config
from server.ctl import main

Done = subprocess.CompletedProcess[str]


class Ctl:
    def __init__(self, config: Config) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SANDBOX_")}
        self._env = {**kept, "SANDBOX_STATE_DIR": config.state_dir, "PYTHONPATH": str(ROOT)}

    def run(self, *args: str) -> Done:
        command = [sys.executable, "-m", "server.ctl", *args]
        return subprocess.run(
            command, env=self._env, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
        )

    def __call__(self, *args: str) -> Any:
        """What it says in JSON."""
        done = self.run(*args, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def refuses(self, *args: str) -> str:
        done = self.run(*args, "--json")
        assert (done.returncode, done.stdout) == (1, "")
        return str(json.loads(done.stderr)["code"])


@pytest.fixture
def ctl(config: Config) -> Ctl:
    return Ctl(config)


def test_a_tenant_from_its_making_to_its_end(ctl: Ctl) -> None:
    assert ctl("tenant", "add", "acme")["state"] == "active"
    assert ctl.refuses("tenant", "add", "acme") == "tenant_exists"
    assert ctl("tenant", "suspend", "acme")["state"] == "suspended"
    assert ctl("tenant", "resume", "acme")["state"] == "active"
    assert ctl("tenant", "show", "acme")["usage"]["sessions"] == 0
    assert [one["tenant"] for one in ctl("tenant", "list")["tenants"]] == ["acme"]
    assert ctl("tenant", "delete", "acme")["state"] == "deleted"
    assert ctl.refuses("tenant", "show", "acme") == "tenant_not_found"
    assert ctl.refuses("key", "new", "--tenant", "acme") == "tenant_not_found"


def test_a_key_from_its_making_to_its_end(ctl: Ctl) -> None:
    made = ctl("key", "new", "--tenant", "acme", "--name", "ci", "--scope", "files", "--expires-in", "30d")
    assert made["scopes"] == ["files"] and made["expires_at"] is not None
    other = ctl("key", "rotate", made["prefix"], "--grace", "1h")
    assert other["key"] != made["key"] and other["scopes"] == ["files"]
    listed = {one["key_id"]: one for one in ctl("key", "list", "--tenant", "acme")["keys"]}
    assert listed[made["key_id"]]["replaced_by"] == other["key_id"]
    assert ctl("key", "revoke", other["key"])["state"] == "revoked"
    assert ctl.refuses("key", "revoke", other["key_id"]) == "key_not_found"
    assert ctl("usage", "acme")["tenants"][0]["keys"] == 1


def test_a_person_reads_plain_text_and_a_key_stands_alone_on_its_line(ctl: Ctl) -> None:
    """As `KEY=$(sandboxctl key new)` needs it."""
    key = ctl.run("key", "new", "--admin").stdout
    assert key.startswith("e2b_") and len(key) == 85
    assert key[:20] in ctl.run("key", "list").stdout and key[20:84] not in ctl.run("key", "list").stdout
    assert ctl.run("usage").stdout.split()[0] == "tenant"
    assert ctl.run("key", "revoke", "nothing").stderr.startswith("sandboxctl: There is no such key")


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["tenant"],
        ["key", "new", "--expires-in", "soon"],
        ["key", "new", "--tenant", "a", "--admin"],
        ["key", "rotate"],
        ["nonsense"],
    ],
)
def test_wrong_arguments_are_an_error_of_their_own(ctl: Ctl, args: list[str]) -> None:
    done = ctl.run(*args)
    assert done.returncode == 2 and "usage: sandboxctl" in done.stderr


@pytest.mark.parametrize(
    "args", [["key", "new", "--tenant", "a b"], ["key", "new", "--scope", "root"], ["tenant", "add", "../x"]]
)
def test_what_makes_no_sense_is_refused_in_one_line(ctl: Ctl, args: list[str]) -> None:
    done = ctl.run(*args)
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1
    assert "Traceback" not in done.stderr


def commands_of(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str | None]]:
    """All there are, as they are typed, and what each says of itself."""
    groups = [one for one in parser._actions if isinstance(one, argparse._SubParsersAction)]
    if not groups:
        yield parser.prog.removeprefix("sandboxctl "), parser.description
    for group in groups:
        for below in group.choices.values():
            yield from commands_of(below)


COMMANDS = dict(commands_of(main._parser()))
WITHOUT_JSON = {"init", "config", "close-all", "unmount", "example"}


def test_the_commands_that_operators_are_told_of_are_there() -> None:
    told = {
        *("tenant add", "tenant set", "tenant list", "tenant show", "tenant suspend", "tenant resume"),
        *(
            "tenant delete",
            "key new",
            "key list",
            "key rotate",
            "key revoke",
            "usage",
            "status",
            "sysctl",
            "doctor",
        ),
        *("audit list", "audit export", "audit verify", "backup", "restore"),
        *WITHOUT_JSON,
    }
    assert COMMANDS.keys() == told


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main.main([*command.split(), "--help"])
    told = capsys.readouterr().out
    assert ended.value.code == 0 and told.startswith(f"usage: sandboxctl {command}")
    assert COMMANDS[command] and COMMANDS[command].split()[0] in told
    assert ("--json" in told) == (command not in WITHOUT_JSON)


def test_what_the_operator_changes_is_in_the_audit_and_what_he_looks_at_is_not(ctl: Ctl) -> None:
    key = ctl("key", "new", "--tenant", "acme", "--name", "ci")["key"]
    ctl("key", "list")
    ctl("key", "revoke", key)
    ctl.refuses("tenant", "add", "acme")
    found = ctl("audit", "list")["records"][::-1]
    assert [(one["action"], one["outcome"], one["code"]) for one in found] == [
        ("key.create", "done", None),
        ("key.revoke", "done", None),
        ("tenant.create", "refused", "tenant_exists"),
    ]
    assert all(one["actor"].startswith("operator:") for one in found)
    assert found[1]["details"]["key_id"] == key.removeprefix("e2b_")[:16]
    assert key[20:] not in ctl.run("audit", "export").stdout


def test_verify_says_whether_the_audit_is_whole_and_goes_by_its_exit_code(
    ctl: Ctl, config: Config, tmp_path: Path
) -> None:
    for name in ("acme", "other", "third"):
        ctl("tenant", "add", name)
    noted = tmp_path / "noted.json"
    noted.write_text(json.dumps(ctl("audit", "verify")))
    assert json.loads(noted.read_text())["whole"] is True
    assert ctl("audit", "verify", "--noted", str(noted))["whole"] is True
    with contextlib.closing(sqlite3.connect(config.audit_path)) as connection, connection:
        connection.execute("DELETE FROM records WHERE seq = 2")
    done = ctl.run("audit", "verify")
    assert done.returncode == 1
    assert "NOT WHOLE" in done.stdout and "@instance: after record 1 comes 3" in done.stdout
    assert ctl.run("audit", "verify", "--json").returncode == 1


def test_an_audit_that_was_removed_is_missed_though_another_was_begun(ctl: Ctl, config: Config) -> None:
    """`init` runs before every start of the keeper, and makes what is not there."""
    ctl("tenant", "add", "acme")
    before = ctl.run("audit", "verify")
    assert before.returncode == 0 and "There is no witness yet" in before.stdout
    assert ctl.run("init").returncode == 0
    assert ctl("audit", "verify")["witnessed"] is True
    for path in config.audit_path.parent.glob("audit.db*"):
        path.unlink()
    for _ in range(3):
        assert ctl.run("init").returncode == 0
        done = ctl.run("audit", "verify")
        assert done.returncode == 1 and "the witness saw" in done.stdout


def test_a_backup_that_was_restored_is_whole(ctl: Ctl, config: Config, tmp_path: Path) -> None:
    """Older than what the witness saw: who restores it knows."""
    ctl.run("init")
    ctl("backup", str(tmp_path / "copy"))
    for _ in range(3):
        ctl.run("init")
    (config.state / "instance").unlink()
    for path in config.audit_path.parent.iterdir():
        path.unlink()
    ctl("restore", str(tmp_path / "copy"))
    found = ctl("audit", "verify")
    assert (found["whole"], found["witnessed"]) == (True, True)


def test_an_export_is_a_record_a_line_and_can_be_filtered(ctl: Ctl) -> None:
    for name in ("acme", "other"):
        ctl("tenant", "add", name)
    ctl("tenant", "suspend", "acme")
    lines = ctl.run("audit", "export", "--action", "tenant.create").stdout.splitlines()
    assert [json.loads(line)["details"]["name"] for line in lines] == ["acme", "other"]
    assert "tenant.suspend" in ctl.run("audit", "list", "--limit", "1").stdout
