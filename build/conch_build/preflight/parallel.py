"""Rules about how a model is spread over GPUs: what its heads, layers, experts and the machines allow."""

from __future__ import annotations

from collections.abc import Iterator

from conch_build.gpu.memory import split_of
from conch_build.launch.arrangement import arrangement_of
from conch_build.model_info import ModelInfo
from conch_build.plan import Plan
from conch_build.preflight.registry import ENGINE, GPU, Violation, rule

_KEY = "engine.parallel"


@rule("parallel.heads", on=GPU)
def _tensor_divides_heads(plan: Plan, info: ModelInfo) -> Iterator[Violation]:
    """Attention is split over GPUs by whole heads: each must get as many as the others."""
    for where, tensor in _tensor_sizes(plan):
        if info.num_attention_heads % tensor:
            fitting = [size for size in (1, 2, 4, 8, 16) if info.num_attention_heads % size == 0]
            yield Violation(
                where,
                f"{info.num_attention_heads} attention heads cannot be split over {tensor} GPUs",
                f"Set it to one of {', '.join(map(str, fitting))}.",
            )


@rule("parallel.kv-heads", on=GPU)
def _tensor_goes_with_kv_heads(plan: Plan, info: ModelInfo) -> Iterator[Violation]:
    """KV heads are split like attention heads, or, where there are fewer than GPUs, copied: one of the two numbers must
    divide the other."""
    if info.latent is not None:
        return
    for where, tensor in _tensor_sizes(plan):
        splits = info.num_attention_heads % tensor == 0  # else `parallel.heads` says so
        if splits and info.num_kv_heads % tensor and tensor % info.num_kv_heads:
            yield Violation(
                where,
                f"{info.num_kv_heads} KV heads can neither be split over {tensor} GPUs nor copied to them evenly",
                f"Set it to a divisor or a multiple of {info.num_kv_heads}.",
            )


@rule("parallel.kv-copies", on=GPU, severity="warning")
def _kv_heads_are_copied(plan: Plan, info: ModelInfo) -> Iterator[Violation]:
    """With more GPUs than KV heads each head is cached on several of them: the KV cache a token does not shrink
    further."""
    for where, tensor in _tensor_sizes(plan):
        if info.latent is None and tensor > info.num_kv_heads and tensor % info.num_kv_heads == 0:
            yield Violation(
                where,
                f"{tensor} GPUs share {info.num_kv_heads} KV heads: each is cached {tensor // info.num_kv_heads} times",
                f"Set it to {info.num_kv_heads} and use `engine.parallel.pipeline`, if memory for the cache is short.",
                "warning",
            )


@rule("parallel.layers", on=GPU)
def _pipeline_divides_layers(plan: Plan, info: ModelInfo) -> Iterator[Violation]:
    """Each pipeline stage needs a layer; stages of unequal size wait for the largest, and engines cannot have them."""
    pipeline = split_of(plan).pipeline
    if pipeline > info.num_layers:
        yield Violation(f"{_KEY}.pipeline", f"{info.num_layers} layers cannot fill {pipeline} stages", "Lower it.")
    elif info.num_layers % pipeline:
        yield Violation(
            f"{_KEY}.pipeline",
            f"{info.num_layers} layers are not evenly spread over {pipeline} stages",
            f"Set it to a divisor of {info.num_layers}.",
            "error" if plan.engine.backend == "tensorrt" else "warning",
        )


@rule("parallel.experts", on=GPU)
def _experts_are_spread_evenly(plan: Plan, info: ModelInfo) -> Iterator[Violation]:
    """Experts are spread over some or all of the tensor GPUs: their number must divide both."""
    expert, where = plan.engine.parallel.expert, f"{_KEY}.expert"
    if expert == 1:
        return
    if not info.num_experts:
        yield Violation(where, f"{info.architecture} has no experts to spread", "Set it to 1.")
    elif info.num_experts % expert:
        yield Violation(
            where, f"{info.num_experts} experts cannot be spread over {expert} GPUs", "Set it to a divisor."
        )
    for key, tensor in _tensor_sizes(plan):
        if tensor % expert:
            yield Violation(where, f"{expert} does not divide the {tensor} GPUs of `{key}`", "Set it to a divisor.")


@rule("parallel.widths", on=GPU)
def _tensor_divides_widths(plan: Plan, info: ModelInfo) -> Iterator[Violation]:
    """The MLP is split over GPUs by its columns."""
    inner = info.intermediate_size
    for where, tensor in _tensor_sizes(plan):
        shards = tensor // plan.engine.parallel.expert if info.num_experts else tensor
        if shards and inner % shards and info.num_attention_heads % tensor == 0:
            yield Violation(
                where,
                f"an MLP of {inner} columns cannot be split over {shards} GPUs",
                f"Set it to a divisor of {inner}.",
            )


@rule(
    "parallel.world-size",
    on=GPU,
    references=(
        "NVIDIA/TensorRT-LLM#1047",
        "NVIDIA/TensorRT-LLM#2021",
        "NVIDIA/TensorRT-LLM#2813",
        "NVIDIA/TensorRT-LLM#39",
        "triton-inference-server/tensorrtllm_backend#33",
        "triton-inference-server/tensorrtllm_backend#283",
        "triton-inference-server/tensorrtllm_backend#577",
    ),
)
def _processes_can_be_arranged(plan: Plan) -> None:
    """One process a GPU: as many as tensor times pipeline, on nodes that are filled, or none starts. Another number is
    a mismatch, a rank file that is missing, or a server that hangs while it loads."""
    arrangement_of(plan)


@rule("parallel.replicas", on=GPU)
def _replicas_have_gpus_of_their_own(plan: Plan) -> Iterator[Violation]:
    """`conch serve` starts all replicas on one machine, each on GPUs that no other one uses. Several on the same GPU
    would take each other's memory; an engine over several nodes is not started by one command at all."""
    replicas = plan.serving.replicas
    arrangement = arrangement_of(plan)
    wanted = replicas * arrangement.gpus
    if replicas > 1 and (arrangement.nodes > 1 or wanted > arrangement.gpus_per_node):
        yield Violation(
            "serving.replicas",
            f"{replicas} replicas need {wanted} GPUs on one machine of {arrangement.gpus_per_node}",
            "Serve fewer here, and the others from another machine: `serving.gateway.models` takes servers anywhere.",
        )


@rule("parallel.orchestrator", on=ENGINE, severity="warning")
def _orchestrator_spawns(plan: Plan) -> Iterator[Violation]:
    """An orchestrator spawns its workers by MPI on its own node, which Slurm and containers without MPI often
    forbid."""
    triton = plan.serving.triton
    if triton.launch == "orchestrator" and triton.instances == 1 and plan.engine.speculation.method != "draft":
        yield Violation(
            "serving.triton.launch",
            "one engine does not need an orchestrator, which spawns workers by MPI",
            "Use `leader`.",
            "warning",
        )


def _tensor_sizes(plan: Plan) -> Iterator[tuple[str, int]]:
    """Key -> GPUs that layers are split over; of disaggregated workers, both groups."""
    disaggregated = plan.serving.disaggregated
    if disaggregated is None:
        yield f"{_KEY}.tensor", plan.engine.parallel.tensor
        return
    yield "serving.disaggregated.context.tensor", disaggregated.context.tensor
    yield "serving.disaggregated.generation.tensor", disaggregated.generation.tensor
