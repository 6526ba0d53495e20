"""Rules about what a plan passes on to TensorRT-LLM by itself: flags of `trtllm-build`, arguments of the LLM API."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from conch_build.compile.pytorch.merge import DECIDED
from conch_build.gpu.cards import Gpu
from conch_build.plan import Plan
from conch_build.preflight.registry import ENGINE, LLM_API, Violation, rule
from conch_build.profiles import Profile

_BUILD = "trtllm-build"


@rule(
    "arguments.trtllm-build",
    on=ENGINE,
    references=("triton-inference-server/tensorrtllm_backend#604",),
)
def _flags_exist(plan: Plan, profile: Profile, gpu: Gpu) -> Iterator[Violation]:
    """A flag that this release of `trtllm-build` does not know, or not with this value, on this GPU or beside that
    other flag. Blog posts and old scripts are full of flags that have gone; the tool finds out when it is started."""
    if not (plan.engine.build_args and profile.has_command(_BUILD)):
        return
    present = {flag.name for flag in profile.flags_of(_BUILD) if flag.required}
    argv = [word for name in present for word in (name, "unread")]
    for name, value in plan.engine.build_args.items():
        argv += _words(name, value, {flag.name for flag in profile.flags_of(_BUILD) if flag.type == "flag"})
    for name, value in plan.engine.build_args.items():
        if re.fullmatch(r"-\d+", str(value)):
            what = f"`--{name}` must be a whole number from 0 on, not {value}"
            yield Violation("engine.build_args", what, "Correct it, or remove it.")
    for problem in profile.flag_problems(_BUILD, argv, sm=gpu.sm):
        yield Violation("engine.build_args", problem, f"Correct it for TensorRT-LLM {profile.name}, or remove it.")


@rule("arguments.llm-api", on=LLM_API, references=("NVIDIA/TensorRT-LLM tensorrt_llm/llmapi/llm_args.py",))
def _arguments_exist(plan: Plan, profile: Profile) -> Iterator[Violation]:
    """An argument that this release of the LLM API does not know, at any depth, or not with this value or beside that
    other one. It refuses unknown keys, but only on a GPU, when the model is already loading."""
    for where, args in _llm_args(plan):
        for problem in profile.llm_args_problems(args, "pytorch"):
            yield Violation(f"{where}.{problem.key}", problem.message, problem.fix)


@rule("arguments.llm-api-silent", on=LLM_API, severity="warning")
def _arguments_do_what_they_say(plan: Plan, profile: Profile) -> Iterator[Violation]:
    """An argument that the LLM API takes and that then does not do what it looks like."""
    for where, args in _llm_args(plan):
        for problem in profile.llm_args_warnings(args):
            yield Violation(f"{where}.{problem.key}", problem.message, problem.fix, "warning")


@rule("arguments.decided", on=LLM_API)
def _nothing_is_said_twice(plan: Plan) -> Iterator[Violation]:
    """An argument that another key of the plan decides: said twice, one of the two would be ignored."""
    for where, args in _llm_args(plan):
        for name in _names(args):
            if name in DECIDED:
                yield Violation(f"{where}.{name}", f"it is decided by {DECIDED[name]}", "Remove it here.")


def _llm_args(plan: Plan) -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield "engine.llm_args", plan.engine.llm_args
    disaggregated = plan.serving.disaggregated
    if disaggregated is not None:
        yield "serving.disaggregated.context.llm_args", disaggregated.context.llm_args
        yield "serving.disaggregated.generation.llm_args", disaggregated.generation.llm_args


def _names(args: Mapping[str, Any]) -> Iterator[str]:
    for name, value in args.items():
        yield name
        if isinstance(value, Mapping):
            yield from (f"{name}.{field}" for field in value)


def _words(name: str, value: str | int | bool, switches: set[str]) -> list[str]:
    """A key of `engine.build_args` as the words of a command line."""
    flag = f"--{name}"
    if flag in switches:
        return [flag] if value is True else [] if value is False else [flag, str(value)]
    return [flag, {True: "enable", False: "disable"}[value] if isinstance(value, bool) else str(value)]
