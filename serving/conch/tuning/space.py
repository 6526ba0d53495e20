"""Which settings of a plan are tried, each a key of the plan and its choices; and the text of a plan with others.

Knows nothing of how they are measured. What cannot work together is for preflight to say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from conch_build.plan import Plan
from conch_build.yaml_edit import REMOVED, edited

Value = int | str | bool
Values = Mapping[str, Value]
"""Name of a setting -> the value tried."""

KV_SIZE, DRAFT = "engine.kv_cache.size", "engine.speculation"
_MIB = 1 << 20


@dataclass(frozen=True)
class Setting:
    name: str
    """The plan's key; `engine.speculation`: method and length together, as `ngram 4`."""
    choices: tuple[Value, ...]
    own: Value
    """The plan's, one of the choices."""


def space_of(plan: Plan, cores: int) -> list[Setting]:
    """Every setting that the plan's backend has, around the plan's own value."""
    engine = plan.engine
    found = [
        _around("engine.max_batch_size", engine.max_batch_size, (4, 8, 16, 32, 64)),
        _around("engine.max_num_tokens", engine.max_num_tokens, (128, 256, 512, 1024, 2048, 4096)),
        Setting("engine.chunked_prefill", (False, True), engine.chunked_prefill),
        _around("engine.stream_interval", engine.stream_interval, (1, 2, 4, 8)),
    ]
    cache = engine.kv_cache
    if cache.free_memory_fraction is None and cache.concurrency is None:
        mib = cache.size / _MIB
        sizes = dict.fromkeys(f"{max(round(mib * factor), 1)}MiB" for factor in (0.25, 0.5, 1, 2))
        found.append(Setting(KV_SIZE, tuple(sizes), f"{max(round(mib), 1)}MiB"))
    if plan.engine.backend == "openvino":
        threads = dict.fromkeys(("auto", *range(1, cores + 1), engine.threads))
        found.append(Setting("engine.threads", tuple(threads), engine.threads))
    found += _speculation(plan)
    return found


def own_values(space: list[Setting]) -> dict[str, Value]:
    return {setting.name: setting.own for setting in space}


def changed(space: list[Setting], values: Values) -> dict[str, Value]:
    """What differs from the plan."""
    return {setting.name: values[setting.name] for setting in space if values[setting.name] != setting.own}


def written(text: str, changes: Values) -> tuple[str, bool]:
    """A plan's text with other settings, and whether its comments are still there."""
    edits: dict[tuple[str, ...], Any] = {}
    for name, value in changes.items():
        if name != DRAFT:
            edits[tuple(name.split("."))] = value
            continue
        method, _, length = str(value).partition(" ")
        if method == "none":
            edits["engine", "speculation"] = REMOVED
        else:
            edits["engine", "speculation", "method"] = method
            edits["engine", "speculation", "max_draft_len"] = int(length)
    return edited(text, edits)


def _around(name: str, own: int, usual: tuple[int, ...]) -> Setting:
    return Setting(name, tuple(sorted({*usual, own})), own)


def _speculation(plan: Plan) -> list[Setting]:
    """n-grams need no second model; a method that the plan names has other lengths, and can be left out."""
    own, length = plan.engine.speculation.method, plan.engine.speculation.max_draft_len
    if own in ("medusa", "lookahead") or (own == "none" and plan.engine.backend != "openvino"):
        return []  # their lengths are the heads', and what is not there needs a checkpoint of its own
    method = "ngram" if own == "none" else own
    lengths = sorted({2, 4, 8, length})
    told = "none" if own == "none" else f"{own} {length}"
    return [Setting(DRAFT, ("none", *(f"{method} {count}" for count in lengths)), told)]
