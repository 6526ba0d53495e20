"""Which processes the server of a plan consists of.

    single         one tritonserver; several engines in it have GPUs of their own by `gpu_device_ids`
    leader         one tritonserver a GPU, which MPI connects; clients talk to rank 0
    orchestrator   one tritonserver that spawns its workers by MPI: several engines that need several GPUs each
    llmapi         one tritonserver whose LLM API finds its workers among the ranks that MPI started

Backend, GPUs and nodes decide. Knows no command lines.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from conch_build.errors import PlanError
from conch_build.plan import Plan

TARGET, DRAFT = "tensorrt_llm", "tensorrt_llm_draft"
Mode = Literal["single", "leader", "orchestrator", "llmapi"]


@dataclass(frozen=True)
class Arrangement:
    mode: Mode = "single"
    world_size: int = 1
    """Ranks of one engine: tensor times pipeline parallel."""
    instances: int = 1
    nodes: int = 1
    gpus_per_node: int = 0
    loads: tuple[str, ...] = (TARGET,)
    """What the ranks behind the first one load."""

    @property
    def uses_mpi(self) -> bool:
        return self.mode != "single"

    @property
    def gpus(self) -> int:
        """All that it takes."""
        return self.world_size * self.instances


SINGLE = Arrangement()
"""What needs no GPU: one server with one engine."""


def arrangement_of(plan: Plan) -> Arrangement:
    """The processes that serve `plan` through Triton. Raises PlanError for what no arrangement can do."""
    if plan.engine.backend == "openvino":
        return SINGLE
    parallel = plan.engine.parallel
    world_size = parallel.tensor * parallel.pipeline
    instances = plan.serving.triton.instances
    per_node = plan.target.gpus_per_node
    nodes = math.ceil(world_size / per_node)
    if nodes > 1 and world_size % per_node:
        raise PlanError(
            f"{world_size} GPUs are {world_size / per_node:.1f} nodes of {per_node}: every node must be filled",
            where="engine.parallel",
            fix="Choose tensor times pipeline as a multiple of target.gpus_per_node.",
        )
    if nodes > 1 and plan.engine.backend == "pytorch" and parallel.tensor > per_node:
        raise PlanError(
            f"tensor parallelism of {parallel.tensor} crosses nodes of {per_node}, which the LLM API in Triton cannot",
            where="engine.parallel.tensor",
            fix=f"Take `tensor: {per_node}` and more of `pipeline`.",
        )
    if instances * world_size > nodes * per_node:
        raise PlanError(
            f"{instances} instances of {world_size} GPUs do not fit on "
            + (f"one node of {per_node}" if nodes == 1 else f"{nodes} nodes"),
            where="serving.triton.instances",
            fix="Serve fewer, or as separate servers.",
        )
    mode = _mode(plan, world_size, instances, nodes)
    return Arrangement(mode, world_size, instances, nodes, per_node)


def _mode(plan: Plan, world_size: int, instances: int, nodes: int) -> Mode:
    if plan.engine.backend == "pytorch":
        return "llmapi" if world_size > 1 and instances == 1 else "single"
    drafts = plan.engine.speculation.method == "draft"
    if plan.serving.triton.launch == "orchestrator" or drafts:
        if nodes > 1:
            why = "a draft model beside its target is launched" if drafts else "the plan asks for a launch"
            raise PlanError(
                f"{why} by an orchestrator, which spawns its workers on its own node, and this engine needs {nodes}",
                where="serving.triton.launch",
                fix="Take `leader` without a draft model, or fewer GPUs.",
            )
        return "orchestrator"
    if world_size == 1:
        return "single"
    if instances > 1:
        raise PlanError(
            f"in leader mode one server has one engine, and {instances} are asked for",
            where="serving.triton.instances",
            fix="Take `launch: orchestrator`, or serve the plan several times on ports and GPUs of their own.",
        )
    return "leader"
