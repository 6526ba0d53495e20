"""Rules about a GPU's memory: whether a plan fits, and whether what is left holds its requests."""

from __future__ import annotations

from collections.abc import Iterator

from conch_build.gpu.cards import Gpu
from conch_build.gpu.memory import GpuMemory, gpu_memory, split_of
from conch_build.model_info import ModelInfo
from conch_build.plan import Plan
from conch_build.preflight.registry import ENGINE, GPU, Violation, rule
from conch_build.units import format_bytes

_OUT_OF_MEMORY = (
    "NVIDIA/TensorRT-LLM#486",
    "NVIDIA/TensorRT-LLM#1400",
    "NVIDIA/TensorRT-LLM#2773",
    "triton-inference-server/tensorrtllm_backend#462",
    "triton-inference-server/tensorrtllm_backend#401",
)
_ADAPTER_SHARE = 0.05
"""`lora_cache_gpu_memory_fraction`, upstream's default."""
_LARGE_SHARE = 0.15
"""Of a GPU for logits, which says that the batch was not chosen but left at a default."""


@rule("memory.weights", on=GPU, references=_OUT_OF_MEMORY)
def _gpu_holds_the_model(plan: Plan, info: ModelInfo, gpu: Gpu, memory: GpuMemory) -> Iterator[Violation]:
    """Weights, activations for `max_num_tokens`, logits for `max_batch_size` and what CUDA takes must fit each GPU
    before there is any KV cache. Otherwise loading ends with CUDA out of memory."""
    if memory.kv_limit_bytes > 0:
        return
    largest = sorted(memory.parts.items(), key=lambda part: -part[1])[:3]
    parts = ", ".join(f"{name} {format_bytes(size)}" for name, size in largest)
    yield Violation(
        "engine.parallel" if largest[0][0] == "weights" else "engine.max_batch_size",
        f"{format_bytes(memory.used_bytes)} do not fit the {format_bytes(gpu.memory_bytes)} of {gpu.label} ({parts})",
        _smaller(plan, info, gpu),
    )


@rule("memory.kv-cache", on=GPU, references=_OUT_OF_MEMORY)
def _cache_holds_one_request(plan: Plan, memory: GpuMemory) -> Iterator[Violation]:
    """What is left on the GPU, at the plan's fraction, must hold one request of `max_seq_len`: with fewer tokens the
    server shortens or refuses long requests, or waits for ever."""
    if memory.kv_limit_bytes > 0 and memory.requests < 1:
        yield Violation(
            "engine.kv_cache",
            f"{format_bytes(memory.kv_cache_bytes)} for the KV cache hold {memory.kv_tokens:,} tokens; one request "
            f"of {memory.request_tokens:,} takes {format_bytes(memory.request_bytes)} "
            f"({memory.kv_bytes_per_token:,.0f} bytes a token on each GPU)",
            _more_cache(plan, memory),
        )


@rule("memory.kv-size", on=GPU)
def _asked_cache_is_there(plan: Plan, memory: GpuMemory) -> Iterator[Violation]:
    """A KV cache of a given size, or for a given number of requests, that is larger than what is left: the server takes
    what is left and says nothing."""
    wanted = memory.kv_wanted_bytes
    if memory.kv_limit_bytes > 0 and wanted is not None and wanted > memory.kv_limit_bytes:
        key = "concurrency" if plan.engine.kv_cache.concurrency is not None else "size"
        yield Violation(
            f"engine.kv_cache.{key}",
            f"it asks for {format_bytes(wanted)} on each GPU, and {format_bytes(memory.kv_limit_bytes)} are left there",
            f"{memory.requests} requests of {memory.request_tokens:,} tokens fit; lower it, or use more GPUs.",
        )


@rule("memory.draft", on=GPU, references=_OUT_OF_MEMORY)
def _gpu_holds_the_draft_too(memory: GpuMemory, memory_with_draft: GpuMemory) -> Iterator[Violation]:
    """A draft model shares the GPU with its target: weights of both, and keys and values of both a token. Two engines
    that each take nine tenths of what is free leave the second one nothing; Conch shares the fraction out."""
    both = memory_with_draft
    if memory.requests >= 1 > both.requests:
        yield Violation(
            "engine.speculation.checkpoint",
            f"with the draft model's {format_bytes(both.parts['draft model'])} the KV cache holds {both.kv_tokens:,} "
            f"tokens, fewer than one request of {both.request_tokens:,}",
            "Use a smaller draft, more GPUs, or `engine.speculation.method: none`.",
        )


@rule("memory.batch", on=GPU, severity="warning", references=("NVIDIA/TensorRT-LLM#2773",))
def _batch_is_chosen(plan: Plan, gpu: Gpu, memory: GpuMemory) -> Iterator[Violation]:
    """Logits, and the sampler's copies of them, are reserved for the largest batch. TensorRT-LLM's default of 2048
    takes gigabytes with a large vocabulary, whether that many requests come or not."""
    logits = memory.parts["logits"]
    if logits > _LARGE_SHARE * gpu.memory_bytes:
        yield Violation(
            "engine.max_batch_size",
            f"logits for {plan.engine.max_batch_size} requests take {format_bytes(logits)} of {gpu.label}",
            "Lower it to the requests that you expect at once.",
            "warning",
        )


@rule(
    "memory.shared-gpu",
    on=GPU,
    severity="warning",
    references=("triton-inference-server/tensorrtllm_backend docs/llama_multi_instance.md",),
)
def _engines_do_not_share(plan: Plan) -> Iterator[Violation]:
    """Several engines on one GPU each take their fraction of what is free at that moment: the second gets little, and
    which is second depends on the order of loading. Conch gives each instance GPUs of its own, so this is about a plan
    whose cache is a fraction and whose draft model stands beside it."""
    cache = plan.engine.kv_cache
    if (
        plan.engine.backend == "tensorrt"
        and plan.engine.speculation.method == "draft"
        and not (cache.concurrency or "size" in cache.model_fields_set)
    ):
        yield Violation(
            "engine.kv_cache",
            "the draft model's engine and its target share each GPU, each with a fraction of what it finds free",
            "Give it a `size` or a `concurrency`, which do not depend on who loads first.",
            "warning",
        )


@rule("memory.adapters", on=GPU)
def _gpu_holds_the_adapters(plan: Plan, gpu: Gpu, memory: GpuMemory) -> Iterator[Violation]:
    """Adapters that are loaded at once lie on the GPU beside the weights, each at the largest rank."""
    adapters = memory.parts.get("adapters", 0)
    if adapters > gpu.memory_bytes // 4:
        yield Violation(
            "engine.lora",
            f"{plan.engine.lora.max_loaded} adapters of rank {plan.engine.lora.max_rank} take {format_bytes(adapters)} "
            f"of {gpu.label}",
            "Lower `engine.lora.max_loaded` or `engine.lora.max_rank`.",
        )


@rule("memory.adapter-cache", on=ENGINE, severity="warning", references=("NVIDIA/TensorRT-LLM#1552",))
def _adapters_stay_on_the_gpu(plan: Plan, memory: GpuMemory) -> Iterator[Violation]:
    """The C++ backend keeps adapters in a twentieth of what the KV cache leaves. Where those that are loaded at once
    do not fit, they push each other out, and requests wait for the host or are told that theirs is not in the
    cache."""
    adapters = memory.parts.get("adapters", 0)
    cache = round(_ADAPTER_SHARE * (memory.total_bytes - memory.used_bytes + adapters - memory.kv_cache_bytes))
    if 0 < cache < adapters:
        yield Violation(
            "engine.lora",
            f"{plan.engine.lora.max_loaded} adapters of rank {plan.engine.lora.max_rank} take up to "
            f"{format_bytes(adapters)}, and their cache is {format_bytes(cache)}",
            "Lower `engine.lora.max_loaded` or `engine.lora.max_rank`, or leave more with a smaller `engine.kv_cache`.",
            "warning",
        )


def _smaller(plan: Plan, info: ModelInfo, gpu: Gpu) -> str:
    """What would fit: the smallest number of GPUs that does, if any."""
    parallel = plan.engine.parallel
    for tensor in (2, 4, 8, 16):
        if tensor > parallel.tensor and info.num_attention_heads % tensor == 0 and plan.serving.disaggregated is None:
            wider = parallel.model_copy(update={"tensor": tensor})
            engine = plan.engine.model_copy(update={"parallel": wider})
            if gpu_memory(plan.model_copy(update={"engine": engine}), info, gpu.memory_bytes).requests >= 1:
                return f"It fits with `engine.parallel.tensor: {tensor}`; or quantize further, or use a larger GPU."
    return "Quantize further, use more or larger GPUs, or lower `engine.max_num_tokens` and `engine.max_batch_size`."


def _more_cache(plan: Plan, memory: GpuMemory) -> str:
    larger = f"uantize further, or use {2 * split_of(plan).gpus} GPUs."
    return f"Lower `engine.max_seq_len` to {memory.kv_tokens}, q{larger}" if memory.kv_tokens else f"Q{larger}"
