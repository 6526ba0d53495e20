"""The wheel: both packages, the Triton templates and the type markers, and it packs on its own."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest
from click.testing import CliRunner

from conch.cli import main

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run(pip, check=True, capture_output=True)
    (wheel,) = folder.glob("conch-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def test_the_wheel_holds_both_packages_and_the_templates(unpacked: Path) -> None:
    wanted = ["conch/py.typed", "conch_build/py.typed", "conch_build/calibration_texts.txt", "conch/cli.py"]
    models = ["tensorrt_llm", "preprocessing", "postprocessing", "ensemble"]
    wanted += [f"conch_build/model_repo/{model}/config.pbtxt" for model in models]
    wanted += ["conch_build/_monitoring/alerts.yml", "conch_build/_monitoring/grafana.json"]
    assert not [name for name in wanted if not (unpacked / name).is_file()]
    (license_file,) = unpacked.glob("*.dist-info/licenses/LICENSE")
    assert "Apache License" in license_file.read_text()


def test_an_installed_wheel_finds_its_own_templates(unpacked: Path) -> None:
    program = "from conch_build.pack import templates_dir; print(templates_dir())"
    run = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(unpacked)},
        cwd=unpacked,
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(run.stdout.strip()) == unpacked / "conch_build" / "model_repo"


def test_the_command_says_its_version() -> None:
    assert CliRunner().invoke(main, ["--version"]).output == f"conch, version {version('conch')}\n"
