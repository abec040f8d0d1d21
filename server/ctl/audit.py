"""`sandboxctl audit`: look into the audit, hand it out, and prove that it is whole."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from server import instance as installation
from server.audit.chain import INSTANCE
from server.audit.ledger import Ledger, LedgerFailed
from server.audit.outbox import carry_over
from server.audit.proof import Finding, examine
from server.audit.search import Page, Query, page, pages
from server.audit.witness import NAME, Witness
from server.config import Config
from server.ctl.place import opened_store
from server.ctl.words import Commands, command, fail, group, table, tell
from server.errors import StoreUnavailable

_PAGE = 1000
_HEADS = ("at", "action", "outcome", "code", "actor", "address", "session", "user")
_UNWITNESSED = (
    "\nThere is no witness yet: an audit that was replaced as a whole looks whole. The keeper writes one."
)


def add_to(commands: Commands) -> None:
    audit = group(commands, "audit", "who did what, when, from where and with which outcome")
    verify = command(audit, "verify", "prove that nothing was altered or removed, or say what was", _verify)
    verify.add_argument(
        "--noted", type=Path, metavar="FILE", help="what `verify --json` printed earlier: it must still hold"
    )
    listed = command(audit, "list", "the last records, newest first", _list)
    listed.add_argument("--limit", type=int, default=50, help="how many (default: %(default)s)")
    export = command(audit, "export", "all records as JSON, one a line, oldest first", _export)
    for parser in (listed, export):
        parser.add_argument(
            "--chain",
            default=INSTANCE,
            help="a tenant's name, @anonymous or @instance (default: %(default)s)",
        )
        for name in ("since", "until", "action", "session", "user", "actor", "outcome"):
            parser.add_argument(
                f"--{name}", help=f"only those of this {name}" if name != "since" else "RFC 3339"
            )


def _verify(config: Config, arguments: argparse.Namespace) -> None:
    if not config.audit_path.exists():
        fail(arguments, "not_whole", f"There is no audit: {config.audit_path} was removed.")
    with _opened(config) as ledger:
        missed, is_witnessed = Witness(config.state, ledger).faults(), (config.state / NAME).exists()
        findings = examine(ledger, _noted(arguments))
    if missed:
        findings.append(Finding("", faults=missed))
    if INSTANCE not in {one.chain for one in findings}:  # it begins with the installation
        findings.append(Finding(INSTANCE, faults=["the installation's own chain is gone"]))
    chains = [one.as_json() for one in findings]
    facts = {"whole": all(one.is_whole for one in findings), "witnessed": is_witnessed, "chains": chains}
    tell(arguments, facts, _told(findings) + ("" if is_witnessed else _UNWITNESSED))
    if not facts["whole"]:
        sys.exit(1)


def _noted(arguments: argparse.Namespace) -> dict[str, tuple[int, str]]:
    if arguments.noted is None:
        return {}
    try:
        chains = json.loads(arguments.noted.read_text())["chains"]
        return {one["chain"]: (one["seq"], one["hash"]) for one in chains if one["chain"]}
    except (OSError, ValueError, KeyError, TypeError) as exc:
        fail(arguments, "invalid_request", f"{arguments.noted}: not of `audit verify --json` ({exc})")


def _told(findings: list[Finding]) -> str:
    rows = [
        (one.chain, one.records, one.pruned, one.seq, one.hash[:16], "whole" if one.is_whole else "NOT WHOLE")
        for one in findings
    ]
    faults = [f"{one.chain or 'audit'}: {fault}" for one in findings for fault in one.faults]
    return "\n".join([table(("chain", "records", "pruned", "last", "hash", "is"), rows), *faults])


def _list(config: Config, arguments: argparse.Namespace) -> None:
    with _opened(config) as ledger:
        query, cursor = _query(arguments, newest_first=True), None
        found: list[dict[str, object]] = []
        while len(found) < arguments.limit:
            one: Page = page(ledger, arguments.chain, query, cursor, arguments.limit - len(found))
            found += [json.loads(line) for line in one.lines]
            cursor = one.cursor
            if cursor is None:
                break
    rows = [[_shown(record[name]) for name in _HEADS] for record in found]
    tell(arguments, {"records": found}, table(_HEADS, rows))


def _shown(value: object) -> object:
    """What clients have said reaches no terminal but escaped."""
    return ascii(value)[1:-1] if isinstance(value, str) else value


def _export(config: Config, arguments: argparse.Namespace) -> None:
    with _opened(config) as ledger:
        for one in pages(ledger, arguments.chain, _query(arguments, False), None, _PAGE, lambda: None):
            for line in one.lines:
                print(line)


def _query(arguments: argparse.Namespace, newest_first: bool) -> Query:
    names = ("since", "until", "action", "session", "user", "actor", "outcome")
    return Query(**{name: getattr(arguments, name) for name in names}, newest_first=newest_first)


@contextmanager
def _opened(config: Config) -> Iterator[Ledger]:
    with opened_store(config) as store:
        ledger = Ledger(config.audit_path, installation.load(config).audit_key)
        try:
            carry_over(store, ledger)
            yield ledger
        except LedgerFailed as exc:
            raise StoreUnavailable(f"The audit cannot be read: {exc}") from exc
        finally:
            ledger.close()
