"""What has broken other servers in public, as far as it can be read off the source."""

from __future__ import annotations

import ast
from importlib.metadata import version
from pathlib import Path

import conch.gateway

FOLDER = Path(conch.gateway.__file__).parent
TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in FOLDER.rglob("*.py")}


def calls(tree: ast.AST) -> list[ast.Call]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call)]


def test_starlette_does_not_let_a_host_header_forge_a_path() -> None:
    assert tuple(map(int, version("starlette").split(".")[:3])) >= (1, 0, 1)


def test_no_request_starts_a_program_or_runs_code() -> None:
    forbidden = {"eval", "exec", "compile", "__import__", "os.system", "os.popen", "importlib.import_module"}
    for path, tree in TREES.items():
        found = {ast.unparse(call.func) for call in calls(tree)}
        assert not found & forbidden, path
        assert not [name for name in found if name.startswith(("subprocess.", "os.exec", "os.spawn"))], path


def test_no_sql_is_made_of_what_a_request_says() -> None:
    """The database's module alone writes SQL, about itself; everybody else leaves it to SQLAlchemy."""
    for path, tree in TREES.items():
        for call in calls(tree) if path.name != "database.py" else ():
            assert ast.unparse(call.func) not in ("text", "sqlalchemy.text"), (path, call.lineno)
            assert not ast.unparse(call.func).endswith(".exec_driver_sql"), (path, call.lineno)


def test_nothing_decides_by_a_url_that_a_host_header_can_forge() -> None:
    for path, tree in TREES.items():
        read = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        assert not {"request.url", "request.base_url"} & read, path
