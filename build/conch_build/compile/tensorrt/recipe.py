"""The whole chain of one engine as commands, in their order. Decides nothing itself and runs nothing.

    out/checkpoint/    TensorRT-LLM's checkpoint: a rank file a GPU
    out/engine/        what `trtllm-build` writes
    out/draft/         the same for a draft model
    out/lora/<id>/     adapters, as Triton prefetches them
    out/tokenizer/
    out/xgrammar_tokenizer_info.json

Scripts run in TensorRT-LLM's own image, `trtllm-build` in the one that serves the engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from conch_build.compile.container import EXAMPLES
from conch_build.compile.tensorrt import adapters
from conch_build.compile.tensorrt.checkpoint import (
    calibrates,
    convert_argv,
    converter_name,
    quantize_argv,
    samples_of,
)
from conch_build.compile.tensorrt.flags import build_argv
from conch_build.errors import PlanError
from conch_build.gpu.cards import gpu_of
from conch_build.manifest import DRAFT_DIR, ENGINE_DIR, LORA_DIR, TOKENIZER_DIR, TOKENIZER_FILES
from conch_build.model_info import ModelInfo
from conch_build.plan import Plan
from conch_build.profiles import PROFILES, Profile, container_of, profile_for
from conch_build.recipe import Command, Recipe, Step

CHECKPOINT_DIR = "checkpoint"
CALIBRATION_DIR = "calibration"
TOOLS = "nvcr.io/nvidia/tensorrt-llm/release"
BUILD = "trtllm-build"
XGRAMMAR = f"{EXAMPLES}/generate_xgrammar_tokenizer_info.py"


@dataclass(frozen=True)
class Source:
    """A model to build: its plan, what it is, and the directory it lies in."""

    plan: Plan
    info: ModelInfo
    path: Path

    @property
    def name(self) -> str:
        """As a person knows it."""
        return Path(self.plan.model.checkpoint).name


def recipe(plan: Plan, info: ModelInfo, checkpoint_dir: Path, out: Path, *, draft: Source | None = None) -> Recipe:
    """Everything from checkpoint to engine directory, below `out`. Raises PlanError for what engines cannot do."""
    target = Source(plan, info, checkpoint_dir)
    whole = checkpoint_recipe(target, out) + engine_recipe(target, out)
    if draft is not None:
        whole += checkpoint_recipe(draft, out / DRAFT_DIR) + engine_recipe(draft, out / DRAFT_DIR, draft=True)
    return whole


def checkpoint_recipe(source: Source, out: Path) -> Recipe:
    """The conversion into TensorRT-LLM's checkpoint, at `out/checkpoint`."""
    return Recipe(tuple(_checkpoint_steps(source, out)))


def engine_recipe(source: Source, out: Path, checkpoint: Path | None = None, *, draft: bool = False) -> Recipe:
    """The engine of a converted `checkpoint` (None: the one below `out`), and all that is served beside it."""
    return Recipe(tuple(_engine_steps(source, out, checkpoint or out / CHECKPOINT_DIR, draft)))


def _checkpoint_steps(source: Source, out: Path) -> Iterator[Step]:
    plan, info, model = source.plan, source.info, source.name
    profile = _profile(plan)
    tools = tools_image(plan, profile)
    made = out / CHECKPOINT_DIR
    if not calibrates(plan, info):
        argv = convert_argv(plan, info, source.path, made)
        title = f"convert {model}" + (" to int8 weights" if plan.quantization.format == "int8" else "")
        yield _checked(profile, Command(title, tuple(argv), image=tools), converter_name(plan, info))
        return
    texts = out / CALIBRATION_DIR
    yield Command("calibration texts", _texts_argv(plan, source.path, texts))
    argv = quantize_argv(plan, info, source.path, texts, made)
    form = plan.quantization.format
    title = f"quantize {model} to {form}" if form != "none" else f"convert {model}, scales of its KV cache"
    yield _checked(profile, Command(title, tuple(argv), image=tools), "quantize.py")


def _engine_steps(source: Source, out: Path, checkpoint: Path, draft: bool) -> Iterator[Step]:
    plan, info, model = source.plan, source.info, source.name
    profile = _profile(plan)
    tools = tools_image(plan, profile)
    argv = build_argv(
        plan,
        info,
        checkpoint,
        out / ENGINE_DIR,
        modules=adapters.target_modules(plan, info),
        switches=[flag.name.lstrip("-") for flag in profile.flags_of(BUILD) if flag.type == "flag"],
    )
    command = Command(f"engine of {model}", tuple(argv), image=container_of(plan))
    yield _checked(profile, command, BUILD, sm=gpu_of(plan).sm)
    if draft:
        return
    for number, name in enumerate(plan.engine.lora.adapters, 1):
        argv = adapters.convert_argv(plan, info, name, out / LORA_DIR / str(number))
        command = Command(f"convert the adapter {name}", tuple(argv), image=tools)
        yield _checked(profile, command, "hf_lora_convert.py")
    yield Command("tokenizer", tuple(_tokenizer_argv(source.path, out / TOKENIZER_DIR)))
    argv = ["python3", XGRAMMAR, "--model_dir", str(source.path), "--output_dir", str(out)]
    yield Command("tokenizer of guided decoding", tuple(argv), image=tools)


def tools_image(plan: Plan, profile: Profile) -> str:
    """The image with TensorRT-LLM's scripts, which Triton's has not. Checkpoints are not bound to an image."""
    own = plan.target.container
    return own if own.startswith(TOOLS) else f"{TOOLS}:{profile.name}"


def _profile(plan: Plan) -> Profile:
    """The plan's release. Raises PlanError for one without engines."""
    profile = profile_for(plan)
    if not profile.has_command(BUILD):
        having = ", ".join(name for name, other in PROFILES.items() if other.has_command(BUILD))
        raise PlanError(
            f"{profile.name} has no engines: `{BUILD}` was removed from TensorRT-LLM",
            where="target.tensorrt_llm",
            fix=f"Set it to {having}, or `engine.backend: pytorch`; `conch migrate` rewrites the plan.",
        )
    return profile


def _checked(profile: Profile, command: Command, script: str, *, sm: int | None = None) -> Command:
    """The command, if its release takes every flag of it on a GPU of that SM. Raises PlanError with all it does not."""
    after = 1 if command.argv[0] == script else 2
    if problems := profile.flag_problems(script, command.argv[after:], sm=sm):
        raise PlanError(
            f"TensorRT-LLM {profile.name} does not take this {script}: {'; '.join(problems)}",
            where="engine.build_args" if script == BUILD else "plan",
        )
    return command


def _texts_argv(plan: Plan, source: Path, out: Path) -> tuple[str, ...]:
    module = ("python3", "-m", "conch_build.calibration_set")
    return (*module, plan.quantization.calibration.data, str(out), str(samples_of(plan)), str(source))


def _tokenizer_argv(source: Path, out: Path) -> list[str]:
    """A copy of the tokenizer's files; of a checkpoint that is a config.json alone, those that most have."""
    files = [name for name in TOKENIZER_FILES if (source / name).is_file()]
    if not any(name.startswith("tokenizer") for name in files):
        files = ["tokenizer.json", "tokenizer_config.json", "generation_config.json", "config.json"]
    return ["install", "-D", "-m", "644", "-t", str(out), *(str(source / name) for name in files)]
