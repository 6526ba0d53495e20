"""The whole way to what is served, in its order.

    out/checkpoint/      the weights as the LLM API loads them, with their tokenizer
    out/llm_args.yaml    its arguments; none for disaggregated workers, which have their own
    out/tokenizer/       the tokenizer for those who read and write text
    out/trtllm-serve.sh  serves it without Triton

Decides nothing itself and runs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from conch_build.compile.pytorch.arguments import llm_args, to_yaml
from conch_build.compile.pytorch.checkpoint import checkpoint_commands
from conch_build.compile.pytorch.serve import serve_script
from conch_build.compile.pytorch.speculation import check_draft
from conch_build.compile.tensorrt.recipe import Source
from conch_build.manifest import TOKENIZER_DIR, TOKENIZER_FILES
from conch_build.model_info import ModelInfo
from conch_build.plan import Plan
from conch_build.profiles import profile_for
from conch_build.recipe import Command, Recipe, Step, TextFile

CHECKPOINT_DIR = "checkpoint"
LLM_ARGS_FILE = "llm_args.yaml"

_USUAL_FILES = ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "config.json")
"""What most checkpoints have of a tokenizer."""


def recipe(plan: Plan, info: ModelInfo, checkpoint_dir: Path, out: Path, *, draft: Source | None = None) -> Recipe:
    """Everything below `out`; a draft model stays where it is. Raises PlanError for what the LLM API cannot do."""
    return checkpoint_recipe(plan, info, checkpoint_dir, out) + engine_recipe(
        plan, info, checkpoint_dir, out, draft=draft
    )


def checkpoint_recipe(plan: Plan, info: ModelInfo, checkpoint_dir: Path, out: Path) -> Recipe:
    """The quantized checkpoint, at `out/checkpoint`."""
    return Recipe(tuple(checkpoint_commands(plan, info, profile_for(plan), checkpoint_dir, out / CHECKPOINT_DIR)))


def engine_recipe(
    plan: Plan, info: ModelInfo, checkpoint_dir: Path, out: Path, *, draft: Source | None = None
) -> Recipe:
    """The arguments, and what lies beside them; `checkpoint_dir` has the tokenizer."""
    return Recipe(tuple(_engine_steps(plan, info, checkpoint_dir, out, draft)))


def _engine_steps(plan: Plan, info: ModelInfo, checkpoint_dir: Path, out: Path, draft: Source | None) -> Iterator[Step]:
    if draft is not None:
        check_draft(plan, info, draft.info)
    if plan.serving.disaggregated is None:
        yield from _server_files(plan, info, out, draft)
    described = not (checkpoint_dir / "tokenizer.json").is_file()  # by a config.json alone
    files = _USUAL_FILES if described else [name for name in TOKENIZER_FILES if (checkpoint_dir / name).is_file()]
    sources = [str(checkpoint_dir / name) for name in files]
    yield Command("tokenizer", ("install", "-D", "-m", "644", "-t", str(out / TOKENIZER_DIR), *sources))


def _server_files(plan: Plan, info: ModelInfo, out: Path, draft: Source | None) -> Iterator[Step]:
    args = llm_args(plan, info, profile_for(plan), draft.path if draft else None)
    yield TextFile("arguments of the LLM API", str(out / LLM_ARGS_FILE), to_yaml(args))
    script = serve_script(plan, CHECKPOINT_DIR, LLM_ARGS_FILE)
    yield TextFile("serves it without Triton", str(out / "trtllm-serve.sh"), script)
