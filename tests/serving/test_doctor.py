"""`conch doctor` on this machine, and on one that lacks something."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from conch import doctor
from conch.commands.doctor import doctor as command
from conch.triton import folder
from conch.triton.find import find_tritonserver
from conch_build.errors import SetupError


def found() -> dict[str, doctor.Check]:
    return {check.name: check for check in doctor.checks()}


def test_every_part_of_serving_is_looked_at() -> None:
    checks = found()
    assert {"python", "numpy", "libpython", "tritonserver", "openvino", "cpu", "ports", "memory", "disk"} <= set(checks)
    assert checks["tritonserver"].ok
    assert "loopback" in checks["tritonserver"].detail or find_tritonserver().version() >= (2, 59)


def test_a_failed_check_says_what_to_do_and_the_exit_code_is_that_of_setup_errors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        monkeypatch.setattr(doctor, "_SERVED", {"HTTP": port})
        result = CliRunner().invoke(command, ["--json"])
    ports = next(check for check in json.loads(result.stdout) if check["name"] == "ports")
    assert ports == {
        "name": "ports",
        "ok": False,
        "detail": f"in use: {port} (HTTP)",
        "fix": "Stop what listens there (a running Conch may), or set ports in the plan.",
    }
    assert result.exit_code == 4


def test_a_missing_extra_is_installed_from_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastapi", None)
    check = found()["conch[gateway]"]
    assert (check.detail, check.fix) == ("missing: fastapi", "pip install '.[gateway]' in Conch's checkout")


def test_numpy_2_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_installed", lambda package: "2.1.0")
    check = found()["numpy"]
    assert not check.ok
    assert check.fix == "pip install 'numpy<2'"


def test_numpy_2_stops_a_start_with_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda package: "2.1.0")
    with pytest.raises(SetupError, match=r"needs NumPy 1.x, not 2.1.0. pip install 'numpy<2'"):
        find_tritonserver()


def test_the_backend_folder_is_written_once_and_mended(tmp_path: Path) -> None:

    run_folder = tmp_path
    install = find_tritonserver()
    made = folder.backend_folder(install, run_folder)
    stub = made / "python" / "triton_python_backend_stub"
    written = stub.stat().st_mtime_ns, made.stat().st_ino
    assert folder.backend_folder(install, run_folder) == made
    assert (stub.stat().st_mtime_ns, made.stat().st_ino) == written
    stub.write_bytes(b"cut short")
    folder.backend_folder(install, run_folder)
    assert stub.stat().st_size > 100_000
    assert [path.name for path in run_folder.iterdir()] == [f"backends-3.{sys.version_info.minor}"]
