"""Whether the values of a config.json are what its keys promise: numbers that are numbers, mappings that are mappings.

Sizes alone are `model_info.whole_number`'s. A config that passes can be read without looking at types again; what its
values mean is not judged here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from conch_build.errors import CheckpointError

LARGEST_SIZE = (1 << 31) - 1
MOST_LAYERS = 1000
MOST_EXPERTS = 100_000
"""In all layers together: each is a tensor that is looked for by its name."""


def wrong_types(config: Mapping[str, Any], path: Path) -> Iterator[CheckpointError]:
    """A problem for each key of the parsed config (or generation config) at `path` whose value is of another kind."""
    for key, (fits, kind) in _KINDS.items():
        value = config.get(key)
        if value is not None and not fits(value):
            yield config_error(f"`{key}` must be {kind}, not {_short(value)}", path)


def config_error(what: str, path: Path) -> CheckpointError:
    """A config.json that is no model's."""
    return CheckpointError(what, where=str(path), fix="Restore the model's own config.json.", rule="checkpoint.config")


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _count(value: Any) -> bool:
    return _whole(value) and 0 <= value <= LARGEST_SIZE


def _positive(value: Any) -> bool:
    return (_whole(value) or isinstance(value, float)) and 0 < value < float("inf")


def _switch(value: Any) -> bool:
    return isinstance(value, bool)


def _mapping(value: Any) -> bool:
    return isinstance(value, dict)


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _ids(value: Any) -> bool:
    return _whole(value) or (isinstance(value, list) and all(map(_whole, value)))


def _list(value: Any) -> bool:
    return isinstance(value, list)


def _short(value: Any) -> str:
    text = repr(value) if not _whole(value) or abs(value) < 10**30 else "a number of very many digits"
    return text if len(text) <= 60 else f"{text[:57]}..."


_COUNT = (_count, "a whole number from 0 on")
_POSITIVE = (_positive, "a number above 0")
_SWITCH = (_switch, "true or false")
_MAPPING = (_mapping, "a mapping")
_TEXT = (_text, "text")
_IDS = (_ids, "a token id or a list of them")
_LIST = (_list, "a list")

_KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(
        (
            *("q_lora_rank", "kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"),
            *("n_shared_experts", "shared_expert_intermediate_size", "first_k_dense_replace", "decoder_sparse_step"),
            *("moe_layer_freq", "sliding_window", "max_window_layers", "sliding_window_pattern"),
        ),
        _COUNT,
    ),
    **dict.fromkeys(
        (
            *("rope_theta", "rope_local_base_freq", "partial_rotary_factor", "rms_norm_eps"),
            *("query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping"),
        ),
        _POSITIVE,
    ),
    **dict.fromkeys(
        ("tie_word_embeddings", "attention_bias", "mlp_bias", "use_sliding_window", "norm_topk_prob"), _SWITCH
    ),
    **dict.fromkeys(("rope_scaling", "rope_parameters", "quantization_config", "auto_map"), _MAPPING),
    **dict.fromkeys(("model_type", "dtype", "torch_dtype", "hidden_act", "hidden_activation"), _TEXT),
    **dict.fromkeys(("eos_token_id", "bos_token_id", "pad_token_id"), _IDS),
    **dict.fromkeys(("architectures", "mlp_only_layers", "layer_types"), _LIST),
}
