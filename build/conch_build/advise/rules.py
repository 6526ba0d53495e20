"""The rules of thumb, as a table that one can read: `conch advise --rules` prints it.

For each key the first row counts that holds and whose value preflight takes. A row says when, what, why, and what that
choice excludes. Reasons are those of the documentation of TensorRT-LLM and ModelOpt, of the papers named, and of
measurements with the CPU engine here. To change the advice, change a row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from conch_build.advise.situation import Situation
from conch_build.gpu.memory import gpu_memory
from conch_build.plan import Parallel, Plan
from conch_build.size.cpu import cpu_cache

_GIB = 1 << 30
_TENSOR = (1, 2, 4, 8)


Values = Callable[[Situation, Plan], tuple[Any, ...]]


@dataclass(frozen=True)
class Row:
    key: str
    """Of the plan."""
    when: str
    holds: Callable[[Situation], bool]
    values: Values
    """Candidates, the best first, from the situation and the plan so far."""
    why: str
    excludes: str = ""


def _always(_: Situation) -> bool:
    return True


def _just(value: Any) -> Values:
    return lambda *_: (value,)


def _within(least: int, most: int) -> Values:
    """As many requests as are expected, within bounds."""
    return lambda s, _: (max(least, min(s.requests, most)),)


def _cpu_cache(s: Situation, plan: Plan) -> tuple[str, ...]:
    """GiB for all requests, at most a half of the machine's memory (a quarter to save it); less where that is taken."""
    most = s.machine_bytes // (4 if s.goal == "memory" else 2)
    token = cpu_cache(plan, s.info).bytes_per_token
    size = max(1, round(min(s.requests * s.tokens * token, most)) // _GIB + 1)
    return tuple(f"{size >> halved}GiB" for halved in range(size.bit_length()))


def _most(s: Situation, _: Plan) -> tuple[int, ...]:
    return tuple(size for size in reversed(_TENSOR) if size <= s.gpus)


def _roomiest(s: Situation, plan: Plan) -> tuple[int, ...]:
    """The smallest spread with which all GPUs together hold the expected requests, else the one that holds most."""

    def held(tensor: int) -> int:
        assert s.gpu is not None
        engine = plan.engine.model_copy(update={"parallel": Parallel(tensor=tensor)})
        memory = gpu_memory(plan.model_copy(update={"engine": engine}), s.info, s.gpu.memory_bytes)
        return min(s.requests, s.gpus // tensor * memory.requests)

    return tuple(sorted((size for size in _TENSOR if size <= s.gpus), key=lambda size: (-held(size), size)))


TABLE: tuple[Row, ...] = (
    Row("engine.backend", "no GPU is named", lambda s: s.on_cpu, _just("openvino"), "the engine for CPUs"),
    Row(
        "engine.backend",
        "a GPU is named",
        _always,
        _just("pytorch"),
        "TensorRT-LLM's LLM API has every family, and no engine to build for each GPU",
        "int8 and SmoothQuant weights, which only engines have",
    ),
    Row("engine.max_seq_len", "always", _always, lambda s, _: (s.tokens,), "the longest request that is expected"),
    # Batch
    Row(
        "engine.max_batch_size",
        "latency on a CPU",
        lambda s: s.goal == "latency" and s.on_cpu,
        _within(1, 8),
        "each further request makes every step longer; on a CPU arithmetic is scarce first",
        "more requests at once: they wait in the queue",
    ),
    Row(
        "engine.max_batch_size",
        "latency, or memory",
        lambda s: s.goal in ("latency", "memory"),
        _within(1, 16),
        "a step over few requests is short, and logits and buffers for them are small",
        "the throughput of large batches",
    ),
    Row(
        "engine.max_batch_size",
        "throughput, cost or a batch job, on a CPU",
        lambda s: s.on_cpu and (s.goal in ("throughput", "cost") or s.use == "batch"),
        _within(64, 128),
        "weights are read once a step for all requests of the batch",
        "short steps: every request waits for all the others",
    ),
    Row(
        "engine.max_batch_size",
        "throughput, cost or a batch job, on a GPU",
        lambda s: s.goal in ("throughput", "cost") or s.use == "batch",
        _within(256, 512),
        "decoding is bound by reading weights, once a step whatever the batch (https://arxiv.org/abs/2211.05102)",
        "short steps: every request waits for all the others",
    ),
    Row(
        "engine.max_batch_size",
        "otherwise",
        _always,
        _within(8, 128),
        "the requests that are expected at once",
    ),
    Row(
        "engine.max_num_tokens",
        "latency, or memory",
        lambda s: s.goal in ("latency", "memory"),
        _just(1024),
        "small chunks of prompts hold nobody's next token up, and activations are small",
        "the fastest reading of long prompts",
    ),
    Row(
        "engine.max_num_tokens",
        "throughput, cost or a batch job, on a GPU",
        lambda s: not s.on_cpu and (s.goal in ("throughput", "cost") or s.use == "batch"),
        _just(8192),
        "prompts are bound by arithmetic, and large steps keep it busy",
        "even gaps between tokens",
    ),
    Row("engine.max_num_tokens", "otherwise", _always, _just(2048), "fills a step; more gains little"),
    Row(
        "engine.chunked_prefill",
        "always",
        _always,
        _just(True),
        "long prompts are read beside the others' tokens (https://arxiv.org/abs/2403.02310)",
    ),
    Row(
        "engine.stream_interval",
        "a batch job, or throughput and cost on a CPU",
        lambda s: s.use == "batch" or (s.on_cpu and s.goal in ("throughput", "cost")),
        _just(8),
        "nobody reads along token by token, and each message takes time of the serving core",
        "a smooth stream",
    ),
    # Formats
    Row(
        "quantization.format",
        "the checkpoint comes quantized",
        lambda s: s.quantized,
        _just("none"),
        "it is taken as it is",
        "another format: quantizing twice loses accuracy twice",
    ),
    Row(
        "quantization.format",
        "accuracy",
        lambda s: s.goal == "accuracy",
        _just("none"),
        "the weights as they were trained",
        "the half or quarter of memory and bandwidth that 8 and 4 bits take",
    ),
    Row(
        "quantization.format",
        "memory, on a CPU, and not a small model",
        lambda s: s.on_cpu and s.goal == "memory" and not s.small,
        _just("int4_awq"),
        "a quarter of the memory; large models lose little by it (https://arxiv.org/abs/2306.00978)",
        "the accuracy of 8 bits",
    ),
    Row(
        "quantization.format",
        "on a CPU",
        lambda s: s.on_cpu,
        _just("int8"),
        "half the memory and bandwidth of 16 bits at nearly their accuracy; small models lose too much in 4",
    ),
    Row(
        "quantization.format",
        "memory or cost, on Blackwell, and not a small model",
        lambda s: s.goal in ("memory", "cost") and s.has_kernels("nvfp4") and not s.small,
        _just("nvfp4"),
        "4-bit floats with a scale for 16 weights, multiplied as they are",
        "the accuracy of fp8: compare with `conch eval`",
    ),
    Row(
        "quantization.format",
        "memory, or latency where 16 bits are tight, up to Hopper, and not a small model",
        lambda s: (
            not s.small
            and s.has_kernels("int4_awq")
            and (s.goal == "memory" or (s.goal == "latency" and not s.fits_in_16_bits()))
        ),
        _just("int4_awq"),
        "a quarter of the weights to hold, and to read for each token of a small batch",
        "the throughput of fp8: its weights are widened before they are multiplied",
    ),
    Row(
        "quantization.format",
        "a GPU with fp8",
        lambda s: s.has_kernels("fp8"),
        _just("fp8"),
        "half the memory and twice the arithmetic of 16 bits, at nearly their accuracy (https://arxiv.org/abs/2209.05433)",
        "the last few tenths of a percent: compare with `conch eval`",
    ),
    Row(
        "quantization.format",
        "16 bits do not fit, where int4 has kernels",
        lambda s: not s.fits_in_16_bits() and s.has_kernels("int4_awq"),
        _just("int4_awq"),
        "the weights would leave too little to requests",
        "the throughput of 16 bits at large batches",
    ),
    Row(
        "quantization.format",
        "otherwise",
        _always,
        _just("none"),
        "the GPU multiplies nothing narrower that the LLM API has",
    ),
    Row(
        "quantization.format",
        "nothing wider fits, where int4 has kernels",
        lambda s: s.has_kernels("int4_awq") and s.goal != "accuracy",
        _just("int4_awq"),
        "only a quarter of the weights leaves room for requests",
        "the accuracy of wider formats: compare with `conch eval`",
    ),
    Row(
        "quantization.format",
        "nothing wider fits, on Blackwell",
        lambda s: s.has_kernels("nvfp4") and s.goal != "accuracy",
        _just("nvfp4"),
        "only a quarter of the weights leaves room for requests",
        "the accuracy of wider formats: compare with `conch eval`",
    ),
    Row(
        "quantization.kv_cache",
        "accuracy, on a CPU",
        lambda s: s.goal == "accuracy" and s.on_cpu,
        lambda *_: ("bf16", "f32"),
        "keys and values as they were computed",
        "half of the requests that 8 bits hold",
    ),
    Row(
        "quantization.kv_cache",
        "on a CPU, or accuracy",
        lambda s: s.on_cpu or s.goal == "accuracy",
        _just("auto"),
        "on a CPU 8 bits with a scale a token; on a GPU 16 bits beside weights in 16",
    ),
    Row(
        "quantization.kv_cache",
        "a GPU with fp8",
        lambda s: s.has_kernels("fp8"),
        _just("fp8"),
        "twice the tokens of 16 bits in the same memory, and half to read for each",
        "a cache as it was computed",
    ),
    Row("quantization.kv_cache", "otherwise", _always, _just("auto"), "16 bits beside weights of up to 16"),
    # Memory of keys and values
    Row(
        "engine.kv_cache.size",
        "on a CPU",
        lambda s: s.on_cpu,
        _cpu_cache,
        "keys and values of the expected requests, within half of the machine (a quarter to save memory)",
    ),
    Row(
        "engine.kv_cache.free_memory_fraction",
        "a consumer GPU",
        lambda s: s.consumer_gpu,
        _just(0.8),
        "a desktop's display and other programs take memory of such a card, too",
    ),
    Row(
        "engine.kv_cache.free_memory_fraction",
        "a GPU, and memory",
        lambda s: not s.on_cpu and s.goal == "memory",
        _just(0.5),
        "leaves memory to other programs on the GPU",
        "many requests at once",
    ),
    Row(
        "engine.kv_cache.free_memory_fraction",
        "another GPU",
        lambda s: not s.on_cpu,
        _just(0.9),
        "what the weights leave is for requests",
    ),
    Row(
        "engine.kv_cache.reuse",
        "accuracy on a GPU",
        lambda s: s.goal == "accuracy" and not s.on_cpu,
        _just(False),
        "an answer computed from reused blocks may be rounded otherwise than one from scratch",
        "the saving on prompts that start the same",
    ),
    Row(
        "engine.kv_cache.reuse",
        "otherwise",
        _always,
        _just(True),
        "prompts that start the same (system prompts, turns of a chat, documents) are read once; costs nothing else",
    ),
    # Over GPUs
    Row(
        "engine.parallel.tensor",
        "latency, on GPUs",
        lambda s: not s.on_cpu and s.goal == "latency" and not s.small,
        _most,
        "all GPUs work on each token",
        "throughput: GPUs wait for each other in every layer",
    ),
    Row(
        "engine.parallel.tensor",
        "on GPUs",
        lambda s: not s.on_cpu,
        _roomiest,
        "the fewest GPUs with which all together hold the expected requests: replicas do not wait for each other",
    ),
    Row(
        "serving.triton.instances",
        "a GPU is left for another replica",
        lambda s: s.gpus > 1 and not s.on_cpu and s.goal != "memory",
        lambda s, _: tuple(range(s.gpus, 0, -1)),
        "the GPUs that are left serve requests of their own",
    ),
    # Speculation
    Row(
        "engine.speculation.method",
        "latency, and answers repeat the prompt",
        lambda s: s.goal == "latency" and s.use in ("rag", "code") and s.requests <= 16,
        _just("ngram"),
        "text that is copied from the prompt is guessed from it, and several tokens are verified in one step",
        "throughput at large batches, where guesses take arithmetic that requests need",
    ),
    Row(
        "engine.speculation.method",
        "otherwise",
        _always,
        _just("none"),
        "guesses cost more than they save in large batches; for few requests `conch draft` makes a draft model",
    ),
)
