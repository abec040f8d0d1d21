"""The rules of the house: who may import whom, what must be documented, how long things may get.

A rule that is broken for a reason is an entry in a table here, with the reason beside it.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest
from sandbox_client.errors import BY_CODE

from server import config as configuration
from server import errors
from server import instance as installation
from server.api.auth import OPEN_ENDPOINTS
from server.api.problems import STATUSES, TITLES
from server.api.scopes import ENDPOINTS
from server.app import build
from server.config import Config
from server.records import SCOPES

ROOT = Path(__file__).resolve().parents[1]
LONGEST_FUNCTION = 40
LONGEST_MODULE = 325

# Longer functions: a list of all parts, where a line is added for each and nothing is decided.
LISTS_OF_PARTS = {
    "server/app.py": "_put_together",
    "server/keeper/wiring.py": "put_together",
}
LONGEST_LIST = 70

# Broad excepts: only at the edge of a process or of somebody else's program.
BROAD = {
    "server/api/problems.py": "the edge of a request",
    "server/keeper/listening.py": "the edge of a request to the keeper",
    "server/keeper/selfcheck.py": "the edge of a thread that must go on",
    "server/guest/python_driver.py": "the edge of the user's program",
    "server/guest/requests.py": "the edge of an execution: who waits for it gets what it raised",
}
# Excepts of everything that put things right and raise again.
CLEANING = {
    "server/guest/kept.py",
    "server/guest/oneoff.py",
    "server/guest/processes.py",
    "server/api/executions.py",
    "server/api/contents.py",
    "server/executions.py",
    "server/files.py",
    "server/guest_client.py",
    "server/keeper_client.py",
    "server/keeper/openings.py",
    "server/keeper/making.py",
    "server/keeper/sandboxes.py",
    "server/keeper/sleeping.py",
    "server/audit/ledger.py",
    "server/runs.py",
    "server/sessions.py",
    "server/snapshots.py",
    "server/store.py",
}


def modules(folder: str) -> Iterator[Path]:
    return (path for path in sorted((ROOT / folder).rglob("*.py")) if "__pycache__" not in path.parts)


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imported(path: Path) -> Iterator[str]:
    """Every module imported anywhere in a file, absolute; relative ones as their package has them."""
    package = path.relative_to(ROOT).with_suffix("").parts[:-1]
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            stem = ".".join([*base, *([node.module] if node.module else [])])
            yield stem
            yield from (f"{stem}.{alias.name}" for alias in node.names)


def imports_of(path: Path, *roots: str) -> set[str]:
    return {
        name for name in imported(path) if any(name == root or name.startswith(f"{root}.") for root in roots)
    }


def test_only_the_docker_runtime_imports_docker() -> None:
    found = {name_of(path) for path in modules("server") if imports_of(path, "docker")}
    assert found == {"server/keeper/runtime/docker.py"}


def test_nothing_on_the_web_side_imports_the_keeper() -> None:
    """ctl is the operator's, and asks the runtime itself when no keeper is there."""
    web_side = (p for p in modules("server") if not {"keeper", "ctl"} & set(p.parts))
    assert {name_of(path): found for path in web_side if (found := imports_of(path, "server.keeper"))} == {}


def test_the_guest_imports_only_the_standard_library_and_itself() -> None:
    for path in modules("server/guest"):
        outside = {
            name.split(".")[0]
            for name in imported(path)
            if name.split(".")[0] not in sys.stdlib_module_names
            and not name.startswith(("server.guest", "guest"))
        }
        assert outside == set(), name_of(path)


def test_the_domain_knows_neither_flask_nor_docker_nor_the_api() -> None:
    web = {"server/app.py", "server/worker.py"}  # what puts the web side together, and its process
    for path in modules("server"):
        if "api" in path.parts or name_of(path) in web:
            continue
        assert imports_of(path, "flask", "werkzeug", "flask_limiter", "server.api", "server.app") == set(), (
            name_of(path)
        )


def test_the_layers_import_downwards_only() -> None:
    """api -> executions -> sessions -> store, keeper_client, guest_client."""
    assert imports_of(ROOT / "server/store.py", "server") <= {
        name
        for name in imported(ROOT / "server/store.py")
        if name.startswith(("server.errors", "server.schema", "server.records", "server.occupancy"))
        or name.startswith(("server.create_keys", "server.as_owner"))
    } | {"server"}
    low = (
        "store",
        "schema",
        "records",
        "occupancy",
        "volume_rows",
        "detached",
        "tally",
        "keeper_client",
        "guest_client",
        "guest_answers",
        "guest_refusals",
        "guest_files_client",
        "file_answers",
        "file_errors",
        "guest_bulk_client",
        "bulk_answers",
        "results",
    )
    for name in (*low, "errors", "config", "tickets", "times"):
        assert imports_of(ROOT / f"server/{name}.py", "server.sessions", "server.executions") == set(), name
    for path in modules("server/api"):
        assert imports_of(path, "server.keeper", "server.keeper_client") == set(), name_of(path)


def test_only_the_guest_client_speaks_the_guests_protocol() -> None:
    """Others may know its version and file names; none sends or receives."""
    for path in modules("server"):
        if "guest" in path.parts or path.name in ("guest_client.py", "guest_files_client.py"):
            continue
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"protocol\.(send|receive|prove)\b", text), name_of(path)


def test_only_problems_knows_http_statuses() -> None:
    """Success is said where it happens; every error status lives in one table."""
    for path in modules("server"):
        if name_of(path) in ("server/api/problems.py", "server/keeper/runtime/docker.py"):
            continue
        lines = path.read_text(encoding="utf-8").splitlines()
        statuses = {
            node.value
            for node in ast.walk(parsed(path))
            if isinstance(node, ast.Constant)
            and type(node.value) is int
            and node.value in set(STATUSES.values())
            and not lines[node.lineno - 1].encode()[node.col_offset :].startswith(b"0o")  # rights of a file
        }
        if name_of(path) == "server/api/status.py":
            statuses -= {503}  # /readyz is no error: its body is the answer
        assert statuses == set(), name_of(path)


def test_the_client_imports_packages_only_at_its_edges() -> None:
    """urllib3 comes with requests and anyio with httpx; both name what the wires need of them."""
    edges = {
        "client/sandbox_client/wire_requests.py": {"requests", "urllib3"},
        "client/sandbox_client/wire_httpx.py": {"httpx", "anyio"},
        "client/sandbox_client/cli/terminal.py": {"websocket", "requests"},
        "client/sandbox_client/sandbox.py": {"typing_extensions"},  # for type checkers only: they bring it
    }
    for path in modules("client/sandbox_client"):
        if "integrations" in path.parts:
            continue
        tops = {name.split(".")[0] for name in imported(path)}
        outside = tops - set(sys.stdlib_module_names) - {"client", "sandbox_client"}
        assert outside <= edges.get(name_of(path), set()), name_of(path)


def test_the_client_loads_without_its_extras() -> None:
    """httpx is loaded by the awaiting client, websocket by `sandbox shell`, and neither by anything else."""
    code = "import sys, sandbox_client.cli.main; print({'httpx', 'websocket'} & set(sys.modules))"
    command = [sys.executable, "-c", code]
    env = {"PYTHONPATH": str(ROOT / "client")}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "set()\n"


def test_every_setting_is_documented() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    missing = [name for s in fields(Config) if (name := f"SANDBOX_{s.name.upper()}") not in text]
    assert missing == []


def test_every_documented_setting_exists() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    known = {f"SANDBOX_{setting.name.upper()}" for setting in fields(Config)} | {
        "SANDBOX_URL",
        "SANDBOX_API_KEY",
    }
    assert set(re.findall(r"\bSANDBOX_[A-Z_]+[A-Z]\b", text)) <= known


def test_every_default_in_the_documentation_is_the_real_one() -> None:
    lines = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8").splitlines()
    for setting in fields(Config):
        default = setting.metadata["default"]
        about = [
            line for line in lines if line.startswith("|") and f"`SANDBOX_{setting.name.upper()}`" in line
        ]
        assert about, setting.name
        assert not default or any(f"`{default}`" in line for line in about), (setting.name, default, about)


@pytest.mark.parametrize("code", sorted(STATUSES))
def test_every_problem_code_is_documented_and_known_to_the_client(code: str) -> None:
    assert f"`{code}`" in (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    assert code in BY_CODE


def test_the_client_knows_no_code_that_the_server_does_not() -> None:
    assert set(BY_CODE) == set(STATUSES)


def test_every_error_of_the_domain_has_a_status_with_a_title() -> None:
    def tree(kind: type[errors.SandboxError]) -> Iterator[type[errors.SandboxError]]:
        yield kind
        for child in kind.__subclasses__():
            yield from tree(child)

    for kind in tree(errors.SandboxError):
        assert kind.code in STATUSES, kind
    assert set(STATUSES.values()) <= set(TITLES)


def test_every_cause_of_an_end_is_documented() -> None:
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    assert [cause for cause in errors.CAUSES if f"`{cause}`" not in text] == []


def test_every_route_is_documented() -> None:
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    routes = set()
    for path in modules("server/api"):
        routes |= set(re.findall(r'@bp\.\w+\("([^"]+)"\)', path.read_text(encoding="utf-8")))
    wanted = {re.sub("<[^>]*>", "{id}", route) for route in routes} - {"/docs.css"}
    said = re.sub(r"\{[^}]*\}", "{id}", text)
    assert [route for route in sorted(wanted) if route not in said] == []


def test_every_route_has_a_scope_or_is_open_to_all(tmp_path: Path) -> None:
    """One table says what a key must be good for; a route that is in none is refused when it is called."""
    config = configuration.load({"SANDBOX_STATE_DIR": str(tmp_path)})
    installation.prepare(config)
    routes = {rule.endpoint for rule in build(config).url_map.iter_rules()}
    assert routes == set(ENDPOINTS) | OPEN_ENDPOINTS
    assert set(ENDPOINTS) & OPEN_ENDPOINTS == set()
    assert set(ENDPOINTS.values()) == SCOPES | {"operator"}


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (
        node for node in ast.walk(parsed(path)) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    )


@pytest.mark.parametrize("folder", ["server", "client/sandbox_client"])
def test_functions_and_modules_stay_short(folder: str) -> None:
    for path in modules(folder):
        assert len(path.read_text(encoding="utf-8").splitlines()) <= LONGEST_MODULE, name_of(path)
        for function in functions(path):
            length = (function.end_lineno or 0) - function.lineno + 1
            is_list = LISTS_OF_PARTS.get(name_of(path)) == function.name
            longest = LONGEST_LIST if is_list else LONGEST_FUNCTION
            assert length <= longest, f"{name_of(path)}: {function.name} has {length} lines"


def test_most_functions_are_short() -> None:
    """The tail is what separates good code from the rest: nine of ten within 25 lines."""
    lengths = sorted(
        (f.end_lineno or 0) - f.lineno + 1
        for folder in ("server", "client")
        for p in modules(folder)
        for f in functions(p)
    )
    assert lengths[len(lengths) * 9 // 10] <= 25


def is_broad(handler: ast.ExceptHandler) -> bool:
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(
        kind is None or (isinstance(kind, ast.Name) and kind.id in ("Exception", "BaseException"))
        for kind in kinds
    )


def test_broad_excepts_stand_only_at_the_edge_or_raise_again() -> None:
    for folder in ("server", "client/sandbox_client"):
        for path in modules(folder):
            for node in ast.walk(parsed(path)):
                if not isinstance(node, ast.ExceptHandler) or not is_broad(node) or name_of(path) in BROAD:
                    continue
                raises = isinstance(node.body[-1], ast.Raise) and node.body[-1].exc is None
                assert raises and name_of(path) in CLEANING, f"{name_of(path)}:{node.lineno}"


def test_every_module_says_what_it_is() -> None:
    for folder in ("server", "client/sandbox_client", "tests"):
        for path in modules(folder):
            if path.name != "__main__.py":
                assert ast.get_docstring(parsed(path)), name_of(path)


def test_names_that_say_nothing_are_not_used() -> None:
    """Never manager, service, helper, utils: DESIGN's words are enough."""
    for path in modules("server"):
        names = {
            node.name for node in ast.walk(parsed(path)) if isinstance(node, (ast.ClassDef, ast.FunctionDef))
        }
        assert not [
            name for name in {path.stem, *names} if re.search("manager|service|helper|utils", name.lower())
        ]


def test_every_wait_on_a_process_or_request_in_the_tests_is_bounded() -> None:
    """pytest-timeout would end a hanging run, but not say where."""
    for path in modules("tests"):
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("requests.get", "requests.post"):
                assert any(keyword.arg == "timeout" for keyword in node.keywords), (
                    f"{name_of(path)}:{node.lineno}"
                )


def test_no_test_is_skipped_by_hand() -> None:
    marks = re.compile(r"@pytest\.mark\.(skip\b|xfail)")
    assert [
        name_of(p) for p in modules("tests") if p.name != "test_house.py" and marks.search(p.read_text())
    ] == []


def test_secrets_are_compared_in_constant_time() -> None:
    """Of keys, tickets and guests: what `==` says, its duration says too."""
    telling = re.compile(r"secret|signature|digest|hash")
    for name in ("keys", "tickets", "guest_client", "instance"):
        for node in ast.walk(ast.parse((ROOT / "server" / f"{name}.py").read_text())):
            if isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.Eq, ast.NotEq)):
                assert not telling.search(ast.unparse(node)), f"{name}: {ast.unparse(node)}"
    assert "compare_digest" in (ROOT / "server" / "keys.py").read_text()
