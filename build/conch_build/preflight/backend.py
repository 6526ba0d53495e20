"""Rules about what this version can build and serve at all: it refuses by name what it cannot do."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from conch_build.machine import has_bf16
from conch_build.model_info import ModelInfo
from conch_build.plan import Plan
from conch_build.preflight.registry import Violation, rule
from conch_build.sizing import CPU_TOKENS_PER_BLOCK

_STATIC_ROPE = ("default", "linear", "llama3", "yarn", "longrope")


@rule("backend.unavailable")
def _only_openvino(plan: Plan) -> Iterator[Violation]:
    if plan.engine.backend != "openvino":
        yield Violation(
            "engine.backend",
            f"`{plan.engine.backend}` cannot be built by this version of Conch",
            "Set `engine.backend: openvino`.",
        )


@rule("backend.parallel")
def _no_parallelism(plan: Plan) -> Iterator[Violation]:
    parallel = plan.engine.parallel
    if plan.engine.backend == "openvino" and (parallel.tensor > 1 or parallel.pipeline > 1):
        yield Violation(
            "engine.parallel",
            f"tensor {parallel.tensor} x pipeline {parallel.pipeline}, but openvino runs in one process",
            "Set both to 1.",
        )


@rule("backend.kv-dtype")
def _kv_dtype_of_the_cpu(plan: Plan) -> Iterator[Violation]:
    if plan.engine.backend != "openvino":
        return
    dtype, precision = plan.quantization.kv_cache, plan.engine.precision
    if dtype in ("fp8", "nvfp4"):
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


@rule("backend.bf16")
def _cpu_has_the_precision(plan: Plan) -> Iterator[Violation]:
    if plan.engine.backend != "openvino":
        return
    for key, value in (
        ("engine.precision", plan.engine.precision),
        ("quantization.kv_cache", plan.quantization.kv_cache),
    ):
        if value == "bf16" and not has_bf16():
            yield Violation(key, "this CPU has no bf16 arithmetic (avx512_bf16)", f"Set `{key}` to `auto` or `f32`.")


@rule("backend.block-size")
def _blocks_are_the_kernels(plan: Plan) -> Iterator[Violation]:
    size = plan.engine.kv_cache.tokens_per_block
    if plan.engine.backend == "openvino" and size != CPU_TOKENS_PER_BLOCK:
        yield Violation(
            "engine.kv_cache.tokens_per_block",
            f"the CPU's attention kernel has blocks of {CPU_TOKENS_PER_BLOCK} tokens, not {size}",
            f"Set it to {CPU_TOKENS_PER_BLOCK}.",
        )


@rule("backend.rope")
def _rope_is_static(plan: Plan, info: ModelInfo) -> Iterator[Violation]:
    scaling = info.rope["scaling"] or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind not in _STATIC_ROPE:
        yield Violation(
            "model.checkpoint",
            f"its `{kind}` rope scaling depends on the length of each prompt and cannot be compiled",
            f"Choose a model with one of these: {', '.join(_STATIC_ROPE)}.",
        )


@rule("backend.longrope")
def _one_set_of_frequencies(plan: Plan, info: ModelInfo) -> Iterator[Violation]:
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
def _layout_of_the_backend(plan: Plan) -> Iterator[Violation]:
    if plan.serving.triton.layout == "llmapi":
        yield Violation(
            "serving.triton.layout",
            "`llmapi` belongs to the pytorch backend, which this version cannot build",
            "Use `auto`, `ensemble` or `tokens`.",
        )


@rule("serving.public-host")
def _gateway_stays_local(plan: Plan) -> Iterator[Violation]:
    host = plan.serving.gateway.host
    if not _is_loopback(host):
        yield Violation(
            "serving.gateway.host",
            f"{host} can be reached from outside and this version has no API keys",
            "Set it to 127.0.0.1 and put a proxy that checks keys in front.",
        )


@rule("serving.port-clash")
def _ports_differ(plan: Plan) -> Iterator[Violation]:
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
