"""The LLM API's arguments of context and generation workers: the plan's own, and what handing caches over needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from conch_build.compile.pytorch.arguments import checked, llm_args
from conch_build.compile.pytorch.merge import merged
from conch_build.disaggregated.layout import WHERE, Role, settings_of
from conch_build.errors import PlanError
from conch_build.model_info import ModelInfo
from conch_build.plan import Parallel, Plan
from conch_build.profiles import Profile

TRANSPORT = "DEFAULT"
"""How caches travel: NIXL since 1.2."""
EVENTS = 16384
"""Cache events that a worker keeps until a router asks for them."""


def worker_args(plan: Plan, info: ModelInfo, profile: Profile, role: Role, draft: Path | None = None) -> dict[str, Any]:
    """Raises PlanError for what workers cannot do."""
    settings = settings_of(plan)
    group = settings.context if role == "context" else settings.generation
    parallel = Parallel(tensor=group.tensor, pipeline=group.pipeline, expert=plan.engine.parallel.expert)
    own = plan.model_copy(update={"engine": plan.engine.model_copy(update={"parallel": parallel})})
    args = llm_args(own, info, profile, draft)
    args["cache_transceiver_config"] = {"backend": TRANSPORT, "max_tokens_in_buffer": longest_prompt(plan)}
    if role == "context" and needs_no_overlap(profile):
        args["disable_overlap_scheduler"] = True
    if settings.router == "kv_cache_aware":
        _check_reuse(plan)
        args["kv_cache_config"] = {**args["kv_cache_config"], "event_buffer_max_size": EVENTS}
    where = f"{WHERE}.{role}.llm_args"
    return checked(merged(args, group.llm_args, where), profile, where)


def longest_prompt(plan: Plan) -> int:
    """Tokens that a worker may have to hand over: in whole blocks, as they travel."""
    block = plan.engine.kv_cache.tokens_per_block
    return -(-plan.engine.max_seq_len // block) * block


def needs_no_overlap(profile: Profile) -> bool:
    """Whether context workers of this release fail with the overlap scheduler."""
    return profile.name.startswith("1.2")


def _check_reuse(plan: Plan) -> None:
    if not plan.engine.kv_cache.reuse:
        raise PlanError(
            "kv_cache_aware asks who holds a prompt's blocks, and without reuse nobody does",
            where=f"{WHERE}.router",
            fix="Set `engine.kv_cache.reuse: true`, or take `round_robin` or `load_balancing`.",
        )
