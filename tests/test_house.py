"""The floors of the house: who may import whom, and what must not be anywhere."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = [*(ROOT / "build").rglob("*.py"), *(ROOT / "serving").rglob("*.py"), *(ROOT / "model_repo").rglob("*.py")]
TOP_LEVEL = {"pyproject.toml", "README.md", "LICENSE", "build", "serving", "model_repo", "scripts", "tests"}

FLOORS = {
    "build/conch_build": ("conch",),
    "serving/conch/engine": (
        "conch.triton",
        "conch.gateway",
        "conch.client",
        "conch.backend",
        "tritonclient",
        "fastapi",
    ),
    "serving/conch/gateway": ("conch.engine", "conch.backend", "conch.triton"),
    "serving/conch/client": ("conch.engine", "conch.backend", "conch.triton", "conch.gateway", "fastapi"),
    "serving/conch/triton": ("conch.engine", "conch.backend", "conch.gateway", "fastapi"),
}
HEAVY = ("torch", "modelopt", "openvino", "transformers", "tritonclient", "grpc", "fastapi", "uvicorn", "ray")


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{name.name}" for name in node.names)


@pytest.mark.parametrize("floor", FLOORS)
def test_nothing_imports_upward(floor: str) -> None:
    found = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in (ROOT / floor).rglob("*.py")
        for name in imports(path)
        for above in FLOORS[floor]
        if name == above or name.startswith(f"{above}.")
    ]
    assert not found


def test_nothing_is_pickled() -> None:
    kinds = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
    assert not [(path, name) for path in SOURCES for name in imports(path) if name.split(".")[0] in kinds]


def test_torch_load_never_unpickles_code() -> None:
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.load":
                assert any(word.arg == "weights_only" and ast.unparse(word.value) == "True" for word in node.keywords)


def test_every_module_says_what_it_is() -> None:
    assert not [path for path in SOURCES if not ast.get_docstring(ast.parse(path.read_text()))]


def test_the_top_level_holds_what_the_readme_draws_and_no_more() -> None:
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.splitlines()
    if not tracked:
        pytest.skip("not a git checkout")
    assert {name.split("/")[0] for name in tracked if not name.startswith(".")} == TOP_LEVEL


@pytest.mark.parametrize("arguments", [["--help"], ["build", "--help"], ["serve", "--help"], ["chat", "--help"]])
def test_help_loads_nothing_heavy(arguments: list[str]) -> None:
    program = (
        "import sys; from conch.cli import main\n"
        f"try: main({arguments!r})\n"
        "except SystemExit as end: assert not end.code\n"
        f"print('heavy:', *sorted(set({HEAVY!r}) & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.rstrip().endswith("heavy:"), run.stdout


def test_pytest_looks_into_tests_build(request: pytest.FixtureRequest) -> None:
    """ "build" is among the folders that pytest leaves out unless told otherwise."""
    assert "build" not in request.config.getini("norecursedirs")
