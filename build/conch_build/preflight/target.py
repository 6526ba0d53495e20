"""Rules about the GPU, the release of TensorRT-LLM and the image that a plan is for, and keys of other backends."""

from __future__ import annotations

from collections.abc import Iterator

from conch_build.compile.tensorrt.families import FAMILIES
from conch_build.model_info import ModelInfo
from conch_build.plan import Disaggregated, Plan, Target, Workers
from conch_build.preflight.registry import CPU, ENGINE, GPU, Severity, Violation, declare, rule
from conch_build.profiles import Profile, profile_violations

declare(
    "target.gpu",
    "An engine is made for one kind of GPU, and whether a plan fits is a question of its memory and kernels: the plan "
    "has to name one that is known.",
    decided="plan",
    on=GPU,
)
declare(
    "target.release",
    "The release of TensorRT-LLM that the plan names, or that is installed, is none whose flags and fields are known.",
    decided="plan",
    on=GPU,
)


@rule("target.backend", on=GPU)
def _release_has_the_backend(plan: Plan, profile: Profile) -> Iterator[Violation]:
    """TensorRT engines end with release 1.2.1 (and 1.3.0rc20); later ones have the LLM API alone."""
    yield from lacks(plan, profile, "engine.backend")


@rule(
    "target.container",
    on=GPU,
    references=(
        "triton-inference-server/tensorrtllm_backend#190",
        "triton-inference-server/tensorrtllm_backend#531",
        "NVIDIA/TensorRT-LLM#660",
    ),
)
def _image_has_the_release(plan: Plan, profile: Profile) -> Iterator[Violation]:
    """An engine runs only in the release of TensorRT and TensorRT-LLM that built it: another image fails when it loads
    the engine, with a serialization error. Build and serve in one image."""
    yield from lacks(plan, profile, "target.container")


@rule("target.architecture", on=ENGINE, references=("NVIDIA/TensorRT-LLM#9981",))
def _engines_exist_for_it(info: ModelInfo) -> Iterator[Violation]:
    """Engines are converted by a script for each family, and newer families have none: they exist for the PyTorch
    backend alone. Where a similar family's script is used instead, answers are wrong."""
    if info.architecture not in FAMILIES:
        yield Violation(
            "model.checkpoint",
            f"TensorRT-LLM has no engines for {info.architecture}",
            "Set `engine.backend: pytorch`, which has it.",
        )


@rule("plan.other-backend", on=GPU)
def _keys_of_the_other_gpu_backend(plan: Plan, profile: Profile) -> Iterator[Violation]:
    """A key of the plan that its backend does not read: flags of `trtllm-build` for the LLM API, arguments of the LLM
    API for an engine, GPUs for a CPU."""
    yield from lacks(
        plan, profile, "engine.build_args", "engine.llm_args", "serving.disaggregated", "serving.triton.launch"
    )
    if plan.engine.threads != "auto":
        yield _foreign("engine.threads", "it is of the CPU engine", "warning")


@rule("plan.gpu-keys", on=CPU)
def _keys_of_gpu_backends(plan: Plan) -> Iterator[Violation]:
    """A key of the plan that only the GPU backends read, in a plan for the CPU."""
    engine, triton = plan.engine, plan.serving.triton
    errors = {
        "engine.build_args": bool(engine.build_args),
        "engine.llm_args": bool(engine.llm_args),
        "engine.lora.target_modules": engine.lora.target_modules is not None,
        "serving.triton.instances": triton.instances > 1,
        "serving.triton.launch": triton.launch != "leader",
    }
    for key in (key for key, is_set in errors.items() if is_set):
        yield _foreign(key, "it is of GPU backends, and the plan is for openvino")
    if plan.target != Target():
        yield _foreign("target", "it names a GPU, and the plan is for openvino", "warning")


@rule("disaggregated.cpu", on=CPU)
def _split_on_the_cpu(plan: Plan) -> Iterator[Violation]:
    """On the CPU a worker is a Triton of its own on this machine, and the gateway stands before all of them: what is of
    GPUs, of the LLM API or of its proxy is read by nobody. Guessed tokens have keys and values that do not travel."""
    split, own = plan.serving.disaggregated, Disaggregated()
    if split is None:
        return
    for name in ("router", "port", "hosts"):
        if getattr(split, name) != getattr(own, name):
            yield _foreign(
                f"serving.disaggregated.{name}", "it is of the LLM API's proxy, and the plan is for openvino"
            )
    for group in ("context", "generation"):
        workers = getattr(split, group)
        for name in ("tensor", "pipeline", "llm_args"):
            if getattr(workers, name) != getattr(Workers(), name):
                yield _foreign(
                    f"serving.disaggregated.{group}.{name}", "it is of GPU backends, and the plan is for openvino"
                )
    if plan.engine.speculation.method != "none":
        yield Violation(
            "serving.disaggregated",
            "it does not go with speculation",
            "Leave one of both out.",
        )


def lacks(plan: Plan, profile: Profile, *keys: str) -> Iterator[Violation]:
    """What the plan asks for under `keys` and its release has not."""
    for lack in profile_violations(plan, profile):
        if lack.where in keys:
            yield Violation(lack.where, lack.message, lack.fix, lack.severity)


def _foreign(key: str, why: str, severity: Severity = "error") -> Violation:
    fix = "Remove it, or set `engine.backend`." if severity == "error" else "Leave it out, or keep it as a note."
    return Violation(key, why, fix, severity)
