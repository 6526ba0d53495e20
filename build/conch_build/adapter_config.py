"""PEFT's `adapter_config.json`: what it asks for, by PEFT's own rules. Knows nothing of weights.

Settings that change the result and that a running model cannot honour are refused by name; so is a setting that is
not known here, unless it is off.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from conch_build.errors import CheckpointError
from conch_build.families import HEAD

Config = Mapping[str, Any]

_HONOURED = {
    *("peft_type", "r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern"),
    *("target_modules", "exclude_modules", "layers_to_transform", "layers_pattern", "init_lora_weights"),
}
# Of training alone, of PEFT itself, or settings of a switch that is refused when it is on.
_IRRELEVANT = {
    *("task_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision", "inference_mode"),
    *("lora_dropout", "megatron_core", "runtime_config", "qalora_group_size", "eva_config", "ensure_weight_tying"),
}
_BASE_CHANGING = ("pissa", "olora", "corda", "loftq", "lora_ga")
_DEFAULT_ALPHA = 8
_LARGEST_ALPHA = 1e9
"""JSON may hold numbers that no float can."""


def problems(config: Config, where: str) -> Iterator[CheckpointError]:
    """What is wrong with the config of the file `where`, whichever model it is for."""

    def problem(rule: str, what: str, fix: str) -> CheckpointError:
        return CheckpointError(what, where=where, fix=fix, rule=rule)

    if (kind := config.get("peft_type")) != "LORA":
        yield problem("lora.type", f"is a {kind} adapter", "Only LoRA can be added to a running model.")
        return
    for key, value in config.items():
        if key not in _HONOURED | _IRRELEVANT and value and value != "none":
            what = f"sets `{key}`, which cannot be added to a running model"
            yield problem("lora.unsupported", what, "Merge the adapter into its checkpoint, or train without it.")
    initial = config.get("init_lora_weights")
    if isinstance(initial, str) and initial.lower().startswith(_BASE_CHANGING):
        what = f"was started with `init_lora_weights: {initial}`, which changes the base model's own weights"
        fix = "Save it with `path_initial_model_for_weight_conversion`, which makes a plain LoRA of it."
        yield problem("lora.unsupported", what, fix)
    yield from (problem("lora.config", what, "Restore the adapter's own config.") for what in _malformed(config))


def _malformed(config: Config) -> Iterator[str]:
    for key in ("rank_pattern", "alpha_pattern"):
        if not isinstance(config.get(key) or {}, dict):
            yield f"`{key}` must be a mapping, not {config[key]!r}"
            return
    for key, value in [("r", config.get("r")), *_items(config, "rank_pattern")]:
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            yield f"`{key}` must be a whole number above 0, not {value!r}"
    for key, value in [("lora_alpha", config.get("lora_alpha", _DEFAULT_ALPHA)), *_items(config, "alpha_pattern")]:
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not abs(value) <= _LARGEST_ALPHA:
            yield f"`{key}` must be a number, not {value!r}"
    for key in ("target_modules", "exclude_modules", "layers_pattern"):
        value = config.get(key)
        if not (value is None or isinstance(value, str) or _is_list_of(value, str)):
            yield f"`{key}` must be a text or a list of texts, not {value!r}"
    chosen = config.get("layers_to_transform")
    if not (chosen is None or isinstance(chosen, int) or _is_list_of(chosen, int)):
        yield f"`layers_to_transform` must be a number or a list of numbers, not {chosen!r}"
    for key in ("target_modules", "exclude_modules", "layers_pattern", "rank_pattern", "alpha_pattern"):
        value = config.get(key)
        patterns = [value] if isinstance(value, str) else value if isinstance(value, (list, dict)) else ()
        for pattern in patterns:
            try:
                re.compile(str(pattern))
            except re.error as error:
                yield f"`{key}` holds {pattern!r}, which is no regular expression ({error})"


def is_target(config: Config, layer: str) -> bool:
    """Whether the config selects the layer of that name."""

    def named(names: Any) -> bool:
        if isinstance(names, str):
            return re.fullmatch(names, layer) is not None
        return any(layer == name or layer.endswith(f".{name}") for name in names or ())

    targets = config.get("target_modules")
    if named(config.get("exclude_modules")):
        return False
    if isinstance(targets, str) and targets.lower() == "all-linear":
        return layer != HEAD.removesuffix(".weight")
    if not named(targets):
        return False
    chosen = config.get("layers_to_transform")
    if isinstance(targets, str) or chosen is None or chosen == []:
        return True
    patterns = config.get("layers_pattern") or r"[^.]*"
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        if found := re.match(rf"(?:^|.*?\.){pattern}\.(?P<index>\d+)\.", layer):
            return int(found["index"]) in ([chosen] if isinstance(chosen, int) else chosen)
    return False


def rank(config: Config, layer: str) -> int:
    """The rank that the config gives the layer."""
    return int(_by_pattern(config, "rank_pattern", layer, config["r"]))


def scale(config: Config, layer: str) -> float:
    """What the product of the layer's two weights is multiplied with: alpha / r, or alpha / sqrt(r) with rsLoRA."""
    alpha = float(_by_pattern(config, "alpha_pattern", layer, config.get("lora_alpha", _DEFAULT_ALPHA)))
    return alpha / (math.sqrt(rank(config, layer)) if config.get("use_rslora") else rank(config, layer))


def _by_pattern(config: Config, key: str, layer: str, default: Any) -> Any:
    patterns = config.get(key) or {}
    return next((value for name, value in patterns.items() if re.match(rf"(.*\.)?({name})$", layer)), default)


def _items(config: Config, key: str) -> list[tuple[str, Any]]:
    return [(f"{key}.{name}", value) for name, value in (config.get(key) or {}).items()]


def _is_list_of(value: Any, kind: type) -> bool:
    return isinstance(value, list) and all(isinstance(item, kind) for item in value)
