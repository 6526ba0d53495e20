"""The command that starts a server's processes on one machine."""

from __future__ import annotations

from collections.abc import Iterator

from conch_build.errors import PlanError
from conch_build.launch.arrangement import Arrangement
from conch_build.launch.server import ServerFlags
from conch_build.plan import Plan
from conch_build.recipe import Command

LLMAPI_LAUNCH = "trtllm-llmapi-launch"
_MPIRUN = ("mpirun", "--allow-run-as-root")
_ORCHESTRATOR = {"TRTLLM_ORCHESTRATOR": "1", "TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES": "1"}


def flags_of(plan: Plan, repository: str, admin_key: str) -> ServerFlags:
    """Of the container's server, on the plan's ports."""
    ports = plan.serving.triton
    return ServerFlags(
        repository,
        admin_key,
        http_port=ports.http_port,
        grpc_port=ports.grpc_port,
        metrics_port=ports.metrics_port,
    )


def start_command(
    flags: ServerFlags, arrangement: Arrangement, region_prefix: str = "prefix", image: str | None = None
) -> Command:
    """What starts the server. Raises PlanError for one that needs several nodes.

    Each rank's shared memory is named `<region_prefix><rank>_`.
    """
    check_one_machine(arrangement)
    if arrangement.mode == "orchestrator":
        argv = (*_MPIRUN, "-n", "1", *flags.argv(f"{region_prefix}0_", None, *_small_pools(arrangement)))
        return Command("start Triton, which spawns the ranks of its engines", argv, _ORCHESTRATOR, image)
    if not arrangement.uses_mpi:
        return Command("start Triton", flags.argv(f"{region_prefix}0_"), image=image)
    title = f"start Triton, one rank on each of {arrangement.world_size} GPUs"
    return Command(title, (*_MPIRUN, *_ranks(flags, arrangement, region_prefix)), image=image)


def check_one_machine(arrangement: Arrangement) -> None:
    """Raises PlanError for processes that are spread over several."""
    if arrangement.nodes > 1:
        raise PlanError(
            f"the engine needs {arrangement.nodes} nodes, which one command on one machine does not start",
            where="engine.parallel",
            fix="`conch deploy k8s` and `conch deploy slurm` write what starts them.",
        )


def _ranks(flags: ServerFlags, arrangement: Arrangement, region_prefix: str) -> Iterator[str]:
    """A part of mpirun's command line for each rank; they are parted by colons."""
    for rank in range(arrangement.world_size):
        if rank:
            yield ":"
        yield from ("-n", "1")
        if arrangement.mode == "llmapi":
            yield LLMAPI_LAUNCH
        yield from flags.argv(f"{region_prefix}{rank}_", arrangement.loads if rank else None)


def _small_pools(arrangement: Arrangement) -> Iterator[str]:
    """An orchestrator must not take memory on the GPUs of the workers that it spawns."""
    yield "--pinned-memory-pool-byte-size=0"
    yield "--enable-peer-access=false"
    yield from (f"--cuda-memory-pool-byte-size={gpu}:0" for gpu in range(arrangement.gpus_per_node))
