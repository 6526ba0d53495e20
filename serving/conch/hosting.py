"""How a plan's Triton runs on this machine: which server, which processes, by what it is judged.

A plan for GPUs is held to what the machine has before anything is built, and its engine to what was asked for before
anything is started. Knows nothing of the gateway.
"""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass, replace
from pathlib import Path

from conch.triton.find import TritonInstall
from conch.triton.gpu import find_gpu_server
from conch.triton.probe import CPP_PROBE, OWN_PROBE, Probe
from conch_build.errors import SetupError
from conch_build.launch import SINGLE, Arrangement, arrangement_of, check_one_machine
from conch_build.manifest import DRAFT_DIR, ENGINE_DIR, GpuEngineManifest
from conch_build.plan import Plan

_CPU_START_SECONDS = 300.0
_GPU_START_SECONDS = 3600.0  # hundreds of gigabytes are read


@dataclass(frozen=True)
class Hosting:
    """What `TritonServer` is told beside its repository. `install` None: the one that is found for CPUs."""

    install: TritonInstall | None = None
    arrangement: Arrangement = SINGLE
    probe: Probe = OWN_PROBE
    start_seconds: float = _CPU_START_SECONDS


def hosting_of(plan: Plan) -> Hosting:
    """Raises SetupError for what this machine lacks, PlanError for what `conch serve` cannot start."""
    if plan.engine.backend == "openvino":
        return Hosting()
    from conch_build.deploy.artifacts import check_triton
    from conch_build.gpu.cards import gpu_of
    from conch_build.profiles import container_of

    check_triton(plan, "`conch serve`")
    arrangement = arrangement_of(plan)
    check_one_machine(arrangement)
    whole = replace(arrangement, instances=arrangement.instances * plan.serving.replicas)
    install = find_gpu_server(plan.engine.backend, whole, gpu_of(plan), container_of(plan))
    probe = CPP_PROBE if plan.engine.backend == "tensorrt" else OWN_PROBE
    return Hosting(install, arrangement, probe, _GPU_START_SECONDS)


def check_engine(plan: Plan, artifact: Path) -> None:
    """Hold a GPU engine to its record and to the release that is installed here.

    Raises CompileError with every difference, SetupError for another release.
    """
    if plan.engine.backend == "openvino":
        return
    wanted = GpuEngineManifest.load(artifact)
    release = _installed_release() or wanted.tensorrt_llm
    if plan.engine.backend == "tensorrt":
        from conch_build.compile.tensorrt.engine_config import check_engine as check

        check(artifact / ENGINE_DIR, wanted, release=release)
        if (artifact / DRAFT_DIR).is_dir():
            draft = GpuEngineManifest.load(artifact / DRAFT_DIR)
            check(artifact / DRAFT_DIR / ENGINE_DIR, draft, release=release)
    elif release != wanted.tensorrt_llm:
        raise SetupError(
            f"TensorRT-LLM {release} is installed, and the arguments were checked for {wanted.tensorrt_llm}",
            where=str(artifact),
            fix=f"Set `target.tensorrt_llm: {release}` and build again, or serve it in {wanted.container}.",
        )


def _installed_release() -> str | None:
    try:
        return importlib.metadata.version("tensorrt_llm")
    except importlib.metadata.PackageNotFoundError:
        return None
