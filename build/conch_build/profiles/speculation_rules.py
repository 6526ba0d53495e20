"""What `speculative_config` demands and excludes, by its `decoding_type`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from conch_build.profiles.decoding import Kind, kinds_of
from conch_build.profiles.presence import LATER
from conch_build.profiles.problem import Problem
from conch_build.profiles.types import whole

Args = Mapping[str, Any]

KEY = "speculative_config"


def problems(args: Args, backend: str, snapshots: str) -> Iterator[Problem]:
    """Every broken rule; none for a `decoding_type` that the release does not have, which is wrong anyway."""
    config, kind = _config(args, snapshots)
    if kind is None:
        return
    name = config["decoding_type"]
    if not kind.in_yaml:
        yield Problem(f"{KEY}.decoding_type", f"{name} takes Python objects, which YAML cannot write", "Use another.")
        return
    if backend not in kind.backends:
        yield Problem(f"{KEY}.decoding_type", f"{name} needs the {kind.backends[0]} backend", "Use another.")
    yield from _draft(config, kind, name)
    yield from _tree(config, snapshots)
    yield from _schedule(config)
    if backend == "pytorch":
        yield from _excluded(args)


def warnings(args: Args, snapshots: str) -> Iterator[Problem]:
    """What is taken, though upstream never does it."""
    config, kind = _config(args, snapshots)
    if kind is not None and kind.without_overlap and args.get("disable_overlap_scheduler") is not True:
        what = f"upstream runs {config['decoding_type']} without the overlap scheduler"
        yield Problem("disable_overlap_scheduler", what, "Set it to true.")


def _config(args: Args, snapshots: str) -> tuple[Args, Kind | None]:
    config = args.get(KEY)
    if not isinstance(config, Mapping) or not isinstance(config.get("decoding_type"), str):
        return {}, None
    return config, kinds_of(snapshots).get(config["decoding_type"])


def _draft(config: Args, kind: Kind, name: str) -> Iterator[Problem]:
    if kind.needs_length and not config.get("max_draft_len"):
        yield Problem(f"{KEY}.max_draft_len", f"{name} needs at least 1 token", "Set it, to 4 say.")
    given = [key for key in ("speculative_model_dir", "speculative_model") if config.get(key) is not None]
    if kind.needs_checkpoint and not given:
        yield Problem(f"{KEY}.speculative_model_dir", f"{name} needs a draft checkpoint", "Name its directory.")
    if len(given) > 1:
        what = "and `speculative_model_dir` are two names of one argument"
        yield Problem(f"{KEY}.speculative_model", what, "Remove it.")


def _tree(config: Args, snapshots: str) -> Iterator[Problem]:
    if not config.get("use_dynamic_tree"):
        return
    if config.get("eagle_choices") is not None:
        yield Problem(f"{KEY}.eagle_choices", "is a fixed tree, which `use_dynamic_tree` excludes", "Remove one.")
    width, length = whole(config.get("dynamic_tree_max_topK")), whole(config.get("max_draft_len"))
    total = config.get("max_total_draft_tokens")
    if not width:
        yield Problem(f"{KEY}.dynamic_tree_max_topK", "is needed by `use_dynamic_tree`", "Set it, to 10 say.")
    if total is None and snapshots != LATER:
        what = "is needed by `use_dynamic_tree` in this release"
        yield Problem(f"{KEY}.max_total_draft_tokens", what, "Set it.")
    if total is not None and snapshots == LATER and width and not length <= whole(total) <= width * length:
        what = f"is {total}, and a tree of {length} layers of {width} has {length} to {width * length}"
        yield Problem(f"{KEY}.max_total_draft_tokens", what, "Remove it: the release finds it.")


def _schedule(config: Args) -> Iterator[Problem]:
    schedule, longest = config.get("draft_len_schedule"), config.get("max_draft_len")
    if not isinstance(schedule, Mapping) or not schedule:
        return
    key = f"{KEY}.draft_len_schedule"
    if config.get("max_concurrency") is not None:
        yield Problem(key, "and `max_concurrency` exclude each other", "Remove one.")
    steps = {size: length for size, length in schedule.items() if isinstance(size, int) and isinstance(length, int)}
    if not isinstance(longest, int) or len(steps) < len(schedule):
        return
    smallest = min(steps)
    if steps[smallest] != longest or max(steps.values()) > longest:
        what = f"must start with `max_draft_len` {longest} at its smallest batch ({smallest}) and never be longer"
        yield Problem(key, what, f"Set {smallest}: {longest}.")


def _excluded(args: Args) -> Iterator[Problem]:
    if args.get("sampler_type") == "TRTLLMSampler":
        yield Problem("sampler_type", "speculation needs the TorchSampler", "Remove it.")
    if whole(args.get("pipeline_parallel_size")) > 1:
        yield Problem("pipeline_parallel_size", "the LLM API does not speculate with pipeline stages", "Set it to 1.")
