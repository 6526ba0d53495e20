"""What many tests share: the sample model, built once into `.conch/store`, and a Triton that serves it."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from conch.triton import TritonServer
    from conch_build.pipeline import BuildResult
    from tests.contract.conftest import Gateway

ROOT = Path(__file__).parents[1]
SAMPLE_PLAN = """
name: smollm2
model: {checkpoint: sample}
quantization: {format: int8}
engine:
  max_batch_size: 64
  max_seq_len: 2048
  kv_cache: {size: 256MiB}
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked `gpu` run where there is an NVIDIA GPU and TensorRT-LLM, and nowhere else."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    lacking = what_gpu_tests_lack() if marked else None
    for item in marked if lacking else ():
        item.add_marker(pytest.mark.skip(reason=lacking))


def what_gpu_tests_lack() -> str | None:
    """None on a machine that can run them."""
    from conch_build.gpu.installed import installed_gpus

    if not installed_gpus():
        return "no NVIDIA GPU"
    if importlib.util.find_spec("tensorrt_llm") is None:
        return "no package tensorrt_llm"
    return None


@pytest.fixture(scope="session", autouse=True)
def home() -> None:
    """Conch's home is the repository's, wherever the tests are started from."""
    os.environ.setdefault("CONCH_HOME", str(ROOT / ".conch"))


@pytest.fixture(scope="session")
def sample_build(home: None) -> BuildResult:
    """The sample model, quantized to int8, compiled and packed; a rerun finds it in the store."""
    from conch_build.pipeline import build
    from conch_build.plan import parse_plan
    from conch_build.store import Store

    return build(parse_plan(SAMPLE_PLAN), Store(), say=lambda text: print(text, file=sys.stderr))


@pytest.fixture(scope="session")
def stack_triton(sample_build: BuildResult, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    """A running Triton over the sample model."""
    with running_triton(sample_build, tmp_path_factory.mktemp("triton")) as server:
        yield server


@contextmanager
def running_triton(build: BuildResult, folder: Path) -> Iterator[TritonServer]:
    """A Triton over what was built, on free ports; its logs lie in `folder`."""
    with triton_over(build.repository.path, folder) as server:
        yield server


@contextmanager
def triton_over(repository: Path, folder: Path, **options: Any) -> Iterator[TritonServer]:
    """A Triton over a model repository."""
    from conch.triton import TritonServer

    server = TritonServer(
        repository,
        http_port=0,
        grpc_port=0,
        metrics_port=0,
        log_path=folder / "triton.log",
        run_folder=folder / "run",
        **options,
    )
    server.start()
    try:
        yield server
    finally:
        server.stop(2)


@pytest.fixture(scope="session")
def gateway(stack_triton: TritonServer, sample_build: BuildResult) -> Iterator[Gateway]:
    """A running gateway in front of that Triton."""
    from tests.contract.conftest import running_gateway

    with running_gateway(stack_triton, sample_build.engine.path) as gateway:
        yield gateway
