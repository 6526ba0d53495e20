"""Rules about what the CPU engine cannot do, and about serving on any backend."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from conch_build.machine import has_bf16
from conch_build.model_info import ModelInfo
from conch_build.pack.models import layout_of
from conch_build.plan import Plan
from conch_build.preflight.registry import CPU, Violation, rule
from conch_build.sizing import CPU_TOKENS_PER_BLOCK

_STATIC_ROPE = ("default", "linear", "llama3", "yarn", "longrope")


@rule("backend.parallel", on=CPU)
def _no_parallelism(plan: Plan) -> Iterator[Violation]:
    """The CPU engine is one process on one machine; it uses all cores without being split."""
    parallel = plan.engine.parallel
    if max(parallel.tensor, parallel.pipeline, parallel.expert) > 1:
        yield Violation(
            "engine.parallel",
            f"tensor {parallel.tensor} x pipeline {parallel.pipeline}, but openvino runs in one process",
            "Set all to 1.",
        )


@rule("backend.kv-dtype", on=CPU)
def _kv_dtype_of_the_cpu(plan: Plan) -> Iterator[Violation]:
    """CPUs cache keys and values as 8-bit numbers with a scale a token, in bf16 or in f32; the last two must be the
    type that is computed in."""
    dtype, precision = plan.quantization.kv_cache, plan.engine.precision
    if dtype in ("fp8", "nvfp4", "fp16", "int8"):
        yield Violation(
            "quantization.kv_cache",
            f"no CPU has kernels for a KV cache in {dtype}",
            "Use `auto` (u8 on CPUs: the same size), `bf16` or `f32`.",
        )
    elif dtype in ("bf16", "f32") and precision not in ("auto", dtype):
        yield Violation(
            "quantization.kv_cache",
            f"a {dtype} KV cache needs {dtype} arithmetic, and `engine.precision` is {precision}",
            f"Use `auto` (u8) or `{precision}`, or set `engine.precision: {dtype}`.",
        )


@rule("backend.fp16", on=CPU)
def _no_fp16_on_cpu(plan: Plan) -> Iterator[Violation]:
    """The CPU engine computes in bf16 or in f32."""
    if plan.engine.precision == "fp16":
        yield Violation("engine.precision", "the CPU engine does not compute in fp16", "Set it to `auto`.")


@rule("backend.bf16", on=CPU)
def _cpu_has_the_precision(plan: Plan) -> Iterator[Violation]:
    """bf16 needs a CPU with avx512_bf16 or amx_bf16."""
    for key, value in (
        ("engine.precision", plan.engine.precision),
        ("quantization.kv_cache", plan.quantization.kv_cache),
    ):
        if value == "bf16" and not has_bf16():
            yield Violation(key, "this CPU has no bf16 arithmetic (avx512_bf16)", f"Set `{key}` to `auto` or `f32`.")


@rule("backend.block-size", on=CPU)
def _blocks_are_the_kernels(plan: Plan) -> Iterator[Violation]:
    """OpenVINO's paged attention has blocks of 32 tokens and no others."""
    size = plan.engine.kv_cache.tokens_per_block
    if size != CPU_TOKENS_PER_BLOCK:
        yield Violation(
            "engine.kv_cache.tokens_per_block",
            f"the CPU's attention kernel has blocks of {CPU_TOKENS_PER_BLOCK} tokens, not {size}",
            f"Set it to {CPU_TOKENS_PER_BLOCK}.",
        )


@rule("backend.rope", on=CPU)
def _rope_is_static(info: ModelInfo) -> Iterator[Violation]:
    """A compiled graph has one table of rotations; a scaling that depends on each prompt's length has many."""
    scaling = info.rope["scaling"] or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind not in _STATIC_ROPE:
        yield Violation(
            "model.checkpoint",
            f"its `{kind}` rope scaling depends on the length of each prompt and cannot be compiled",
            f"Choose a model with one of these: {', '.join(_STATIC_ROPE)}.",
        )


@rule("backend.longrope", on=CPU, severity="warning")
def _one_set_of_frequencies(plan: Plan, info: ModelInfo) -> Iterator[Violation]:
    """LongRoPE has one set of frequencies for short sequences and one for long; an engine has one of them for all."""
    scaling, length = info.rope["scaling"] or {}, plan.engine.max_seq_len
    if scaling.get("rope_type") == "longrope" and length > info.trained_positions:
        yield Violation(
            "engine.max_seq_len",
            f"beyond {info.trained_positions} tokens the model's LongRoPE has frequencies for long sequences, which "
            "this engine will use for short ones, too",
            f"If all requests are short, set `engine.max_seq_len` to at most {info.trained_positions}.",
            "warning",
        )


@rule("serving.layout")
def _layout_of_the_backend(plan: Plan) -> None:
    """`llmapi` is TensorRT-LLM's own text model around its LLM API; other backends have token ids and the text models
    around them. A draft model of an engine is asked by one of those, which `tokens` leaves out."""
    layout_of(plan)


@rule("serving.public-host")
def _gateway_stays_local(plan: Plan) -> Iterator[Violation]:
    """Who can reach the gateway needs an API key: without any it does not start. Without TLS the keys, and all that is
    asked and answered, travel in the clear."""
    gateway = plan.serving.gateway
    if not _is_loopback(gateway.host) and gateway.tls.certificate is None:
        yield Violation(
            "serving.gateway.host",
            f"{gateway.host} can be reached from outside, and API keys would travel there in the clear",
            "Set `serving.gateway.tls`, or put a proxy that has a certificate in front.",
            "warning",
        )


@rule("serving.port-clash")
def _ports_differ(plan: Plan) -> Iterator[Violation]:
    """Two servers of the plan want the same port: the second one would not start."""
    triton = plan.serving.triton
    owners: dict[int, str] = {}
    for key, port in (
        ("serving.triton.http_port", triton.http_port),
        ("serving.triton.grpc_port", triton.grpc_port),
        ("serving.triton.metrics_port", triton.metrics_port),
        ("serving.gateway.port", plan.serving.gateway.port),
    ):
        if port and port in owners:
            yield Violation(key, f"port {port} is also {owners[port]}", "Give each its own port (0: any free one).")
        owners.setdefault(port, key)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
