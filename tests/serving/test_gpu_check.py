"""The day on a GPU machine: what goes wrong is written down, what is found is in one file."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner

from conch.cli import main
from conch.gpu_check.journal import Journal, run
from conch.gpu_check.machine import Machine
from conch.gpu_check.plans import key_of
from conch.gpu_check.questions import agreement
from conch.gpu_check.server import serve_in_containers
from conch_build.errors import DeadlineError, InputError, ServiceError
from conch_build.gpu.installed import InstalledGpu, installed_gpus
from tests.serving.test_triton import has_ended, wait_for

H100 = InstalledGpu("NVIDIA H100 80GB HBM3", 81559 << 20, 90, "590.44.01")


def machine(
    *, gpus: tuple[InstalledGpu, ...] = (H100,), docker: str | None = None, runtime: bool = False, **has: str | None
) -> Machine:
    return Machine(
        gpus,
        docker,
        runtime,
        has.get("compose"),
        has.get("tensorrt_llm"),
        has.get("tritonserver"),
        cpp_backend=True,
        system="Linux",
        cores=8,
        memory_bytes=1 << 36,
        disk_free_bytes=1 << 40,
        shared_memory_bytes=1 << 31,
    )


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path, lambda text: None)


def test_a_machine_says_what_it_lacks_and_where_the_chain_would_run() -> None:
    assert machine(gpus=()).missing == [
        "no NVIDIA GPU: nvidia-smi finds none",
        "neither docker nor the package tensorrt_llm",
    ]
    assert machine(docker="28").missing == [
        "docker has no runtime for NVIDIA GPUs: install nvidia-container-toolkit",
        "docker has no plugin `compose`: install docker-compose-plugin",
    ]
    assert machine(docker="28", runtime=True, compose="2.40.3").means == "docker"
    assert machine(tensorrt_llm="1.2.1", tritonserver="/opt/tritonserver/bin/tritonserver").means == "host"
    assert machine(tensorrt_llm="1.2.1").means is None


def test_gpus_are_read_from_their_driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "nvidia-smi"
    rows = "NVIDIA H100 80GB HBM3, 81559, 9.0, 590.44.01\\n[GPU is lost]\\nNVIDIA L4, 23034, 8.9, 590.44.01"
    program.write_text(f'#!/bin/sh\nprintf "{rows}\\n"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert installed_gpus() == (H100, InstalledGpu("NVIDIA L4", 23034 << 20, 89, "590.44.01"))
    program.write_text('#!/bin/sh\necho "NVIDIA-SMI has failed" >&2\nexit 9\n')
    assert installed_gpus() == ()


@pytest.mark.parametrize(
    ("name", "mebibytes", "sm", "key"),
    [
        ("NVIDIA H100 80GB HBM3", 81559, 90, "h100"),
        ("NVIDIA A100-SXM4-40GB", 40960, 80, "a100-40gb"),
        ("NVIDIA L40S", 46068, 89, "l40s"),
        ("NVIDIA H200", 143771, 90, "h200"),
        ("NVIDIA RTX PRO 5000 Blackwell", 48935, 120, "rtx5090"),
    ],
)
def test_an_installed_gpu_gets_the_plans_name_of_it_or_of_the_nearest(
    name: str, mebibytes: int, sm: int, key: str
) -> None:
    assert key_of(InstalledGpu(name, mebibytes << 20, sm, "590")) == key


def test_a_gpu_of_an_architecture_that_no_plan_knows_is_named() -> None:
    with pytest.raises(InputError, match=r"no plan can name this GPU yet: Tesla V100-SXM2-16GB \(sm70\)"):
        key_of(InstalledGpu("Tesla V100-SXM2-16GB", 16384 << 20, 70, "590"))


def test_a_step_that_fails_is_noted_and_the_next_one_runs(journal: Journal) -> None:
    def fail(log: Path) -> None:
        raise ZeroDivisionError("a fault")

    assert journal.step("breaks", fail) is None
    assert journal.step("refused", lambda log: run(["sh", "-c", "echo the reason >&2; exit 3"], log, seconds=5)) is None
    assert journal.step("works", lambda log: 7) == 7
    journal.skip("waits", "no GPU")
    states = [(step.name, step.state, step.detail) for step in journal.steps]
    assert states == [
        ("breaks", "failed", "ZeroDivisionError: a fault"),
        ("refused", "failed", "sh -c echo the reason >&2; exit 3: exit code 3: the reason"),
        ("works", "ok", ""),
        ("waits", "skipped", "no GPU"),
    ]
    assert "Traceback" in journal.steps[0].log_tail[0]
    assert journal.steps[1].log_tail[-1] == "the reason"


def test_what_outlasts_its_time_is_ended_with_what_it_started(tmp_path: Path) -> None:
    with pytest.raises(DeadlineError, match=r"took longer than"):
        run(["sh", "-c", f"sleep 60 & echo $! > {tmp_path}/child; wait"], tmp_path / "log", seconds=0.5)
    child = psutil.Process(int((tmp_path / "child").read_text()))
    wait_for(lambda: has_ended(child), 5)


def test_a_program_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ServiceError, match="`nothing-like-it` cannot be run: No such file"):
        run(["nothing-like-it"], tmp_path / "log", seconds=5)


def test_the_reason_of_a_conch_command_is_its_own_error(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "conch.cli", "check", str(tmp_path / "none.yaml"), "--json"]
    with pytest.raises(ServiceError, match=r"exit code 2: no such plan file\. `conch init` writes one"):
        run(command, tmp_path / "log", seconds=60)


@pytest.mark.parametrize(
    ("one", "other", "same", "share"),
    [
        ([1, 2, 3], [1, 2, 3], 3, 1.0),
        ([1, 2, 3], [1, 9, 3], 1, 1 / 3),
        ([1, 2], [1, 2, 3, 4], 2, 0.5),
        ([], [], 0, 1.0),
    ],
)
def test_answers_agree_up_to_the_first_token_that_differs(
    one: list[int], other: list[int], same: int, share: float
) -> None:
    found = agreement(one, other)
    assert (found.same, found.share) == (same, pytest.approx(share))


def stand_in(folder: Path, name: str, script: str) -> None:
    """A program of that name, first on PATH once `folder` is."""
    program = folder / name
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


def test_containers_that_do_not_become_healthy_are_taken_down_and_their_logs_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bin, plan, log = tmp_path / "bin", tmp_path / "plan.yaml", tmp_path / "log"
    bin.mkdir()
    (tmp_path / "out").mkdir()
    plan.write_text("{name: m, model: {checkpoint: sample}}")
    stand_in(bin, "conch", "exit 0")
    calls = f'echo "$@" >> {tmp_path}/calls'
    stand_in(bin, "docker", f"{calls}\n[ $2 = logs ] && echo CUDA out of memory\n[ $2 != up ]")
    monkeypatch.setenv("PATH", f"{bin}:/usr/bin:/bin")
    with pytest.raises(ServiceError, match="exit code 1"):
        serve_in_containers(("conch",), plan, tmp_path / "out", log, seconds=10)
    assert [line.split()[1] for line in (tmp_path / "calls").read_text().splitlines()] == ["up", "logs", "down"]
    assert "CUDA out of memory" in log.read_text()


def run_day(folder: Path, *options: str) -> tuple[int, str, dict[str, Any]]:
    """Exit code, output, and what the report's last block holds."""
    done = CliRunner().invoke(main, ["gpu-check", "-o", str(folder), *options])
    report = (folder / "report.md").read_text()
    block = report[report.index("## Everything") :].split("json\n", 1)[1].rstrip("`\n")
    return done.exit_code, done.output, json.loads(block)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(bool(installed_gpus()), reason="there is a GPU: tests/gpu")
def test_without_a_gpu_it_runs_says_what_is_missing_and_writes_the_report(tmp_path: Path) -> None:
    code, output, data = run_day(tmp_path)
    assert code == 4, output
    assert "no NVIDIA GPU: nvidia-smi finds none" in (tmp_path / "report.md").read_text()
    last = output.splitlines()[-2]
    assert last.startswith("gpu-check: no NVIDIA GPU") and "0 of 2 GPU engines answer" in last
    states = {step["name"]: step["state"] for step in data["steps"]}
    assert states["cpu: chat"] == states["cpu: streams"] == states["cpu: ensemble"] == states["cpu: bench"] == "ok"
    assert states["tensorrt none"] == states["pytorch none"] == "skipped"
    assert len(data["answers"]["cpu: chat"]) == 8


@pytest.mark.skipif(bool(installed_gpus()), reason="there is a GPU: tests/gpu")
def test_a_day_on_which_every_container_fails_is_written_down_to_its_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stand_in(tmp_path, "nvidia-smi", "echo 'NVIDIA H100 80GB HBM3, 81559, 9.0, 590.44.01'")
    answers = '*"version --format"*) echo 28.2.2;; *info*) echo nvidia;; *"compose version"*) echo 2.40.3;;'
    stand_in(tmp_path, "docker", f'case "$*" in {answers} *) echo no such image >&2; exit 125;; esac')
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    code, output, data = run_day(tmp_path / "out", "--backend", "tensorrt", "--no-compare")
    assert code == 5, output
    assert data["machine"]["means"] == "docker"
    found = {step["name"]: (step["state"], step["detail"]) for step in data["steps"]}
    assert found["tensorrt none: check"][0] == found["tensorrt none: dry run"][0] == "ok"
    assert found["tensorrt none: release"][0] == found["tensorrt none: build"][0] == "failed"
    assert "no such image" in found["tensorrt none: release"][1]
    assert found["tensorrt none: chat"] == ("skipped", "its build failed")
