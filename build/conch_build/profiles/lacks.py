"""What a plan asks for that its release has not, and which release has it. Reads the plan alone, no checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from conch_build.plan import Plan
from conch_build.profiles.profile import Profile
from conch_build.profiles.releases import PROFILES, release_in

Choices = Mapping[str, tuple[str, ...]]

METHODS: Choices = {
    "tensorrt": ("none", "draft", "medusa", "lookahead"),
    "pytorch": ("none", "draft", "ngram", "eagle3", "mtp"),
}
"""Backend -> ways to speculate."""

FORMATS: Choices = {
    "tensorrt": ("none", "int8", "int8_sq", "int4_awq", "fp8", "nvfp4", "w4a8_awq"),
    "pytorch": ("none", "int4_awq", "fp8", "nvfp4", "w4a8_awq"),
}
"""Backend -> formats that it has kernels for, whatever the GPU."""

KV_TYPES: Choices = {
    "tensorrt": ("auto", "bf16", "fp16", "fp8", "int8"),
    "pytorch": ("auto", "bf16", "fp16", "fp8", "nvfp4"),
}
"""Backend -> types of the KV cache."""


@dataclass(frozen=True)
class Lack:
    """`where`: the plan's key. `has`: profiles that have it, with the backend it needs if that is another one."""

    where: str
    message: str
    fix: str
    has: tuple[str, ...] = ()
    severity: Literal["error", "warning"] = "error"


def profile_violations(plan: Plan, profile: Profile) -> Iterator[Lack]:
    """Everything in a plan for a GPU that `profile` has not; nothing for a plan of the CPU."""
    if plan.engine.backend == "openvino":
        return
    yield from _backend(plan, profile)
    if plan.engine.backend in profile.backends:
        yield from _by_backend(plan, profile)
    yield from _image(plan, profile)


def _backend(plan: Plan, profile: Profile) -> Iterator[Lack]:
    backend = plan.engine.backend
    if backend in profile.backends:
        return
    having = tuple(name for name, other in PROFILES.items() if backend in other.backends)
    yield Lack(
        "engine.backend",
        f"TensorRT-LLM {profile.name} has no {backend} backend: {having[0]} is the last stable release that has it",
        f"Set `target.tensorrt_llm: {having[0]}`, or `engine.backend: pytorch` (`conch migrate` rewrites the plan).",
        having,
    )


def _by_backend(plan: Plan, profile: Profile) -> Iterator[Lack]:
    backend = plan.engine.backend
    for where, asked, table in (
        ("engine.speculation.method", plan.engine.speculation.method, METHODS),
        ("quantization.format", plan.quantization.format, FORMATS),
        ("quantization.kv_cache", plan.quantization.kv_cache, KV_TYPES),
    ):
        if asked not in table[backend]:
            yield _other_backend(where, asked, backend, table, profile)
    if plan.engine.build_args and backend != "tensorrt":
        yield Lack("engine.build_args", "are flags of trtllm-build, which makes engines", "Remove them.")
    if plan.engine.llm_args and backend != "pytorch":
        yield Lack("engine.llm_args", "are arguments of the LLM API, which loads no engines here", "Remove them.")
    if plan.serving.triton.layout == "llmapi" and backend != "pytorch":
        yield Lack("serving.triton.layout", "`llmapi` belongs to the pytorch backend", "Use `ensemble` or `tokens`.")
    if plan.serving.triton.launch == "orchestrator" and backend != "tensorrt":
        yield Lack("serving.triton.launch", "`orchestrator` is a mode of the engine backend", "Remove it.")
    if plan.serving.disaggregated is not None and backend != "pytorch":
        yield Lack(
            "serving.disaggregated",
            "workers that hand caches over are `trtllm-serve` with the pytorch backend",
            "Set `engine.backend: pytorch`, or remove it.",
            tuple(PROFILES),
        )


def _other_backend(where: str, asked: str, backend: str, table: Choices, profile: Profile) -> Lack:
    other = next((name for name, values in table.items() if asked in values), None)
    known = ", ".join(table[backend])
    if other is None:
        return Lack(where, f"no GPU backend of TensorRT-LLM has `{asked}`", f"Use one of {known}.")
    having = tuple(name for name, one in PROFILES.items() if other in one.backends)
    back = f"`engine.backend: {other}`"
    if other not in profile.backends:
        back += f" with `target.tensorrt_llm: {having[0]}`"
    what = f"the {backend} backend of TensorRT-LLM {profile.name} has no `{asked}`; the {other} backend has it"
    return Lack(where, f"{what} ({', '.join(having)})", f"Use one of {known}, or set {back}.", having)


def _image(plan: Plan, profile: Profile) -> Iterator[Lack]:
    container = plan.target.container
    if container != "auto":
        release = release_in(container)
        if release is not None and release != profile.name:
            yield Lack(
                "target.container",
                f"holds TensorRT-LLM {release}, and the plan is for {profile.name}",
                f"Use {profile.container}, or set `target.tensorrt_llm: {release}`.",
            )
    elif plan.serving.disaggregated is None and not any(image.triton for image in profile.containers):
        yield Lack(
            "target.container",
            f"no image of Triton with TensorRT-LLM {profile.name} is known",
            "Name one, serve with `trtllm-serve`, or set `target.tensorrt_llm: 1.2.1`.",
            tuple(name for name, one in PROFILES.items() if any(image.triton for image in one.containers)),
            "warning",
        )
