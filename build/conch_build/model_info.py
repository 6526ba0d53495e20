"""What a checkpoint is: architecture, sizes, end tokens, from its parsed JSON files and weight headers.

Whether the files are whole and fit to be compiled is for `inspection`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conch_build.errors import CheckpointError
from conch_build.families import EMBEDDING, EXPERTS, HEAD, complete
from conch_build.files import read_json
from conch_build.weights import Weights

_DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}


@dataclass(frozen=True)
class ModelInfo:
    """A decoder's facts; sizes count elements, `weight_bytes` bytes on disk."""

    architecture: str
    model_type: str
    num_layers: int
    hidden_size: int
    num_attention_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    """Of the MLP, or of one expert."""
    num_experts: int
    """0: the MLP is dense."""
    vocab_size: int
    max_position_embeddings: int
    dtype: str
    tied_embeddings: bool
    rope: Mapping[str, Any]
    """`theta`, and `scaling`: None or the config's own mapping."""
    trained_positions: int
    """Positions before any stretching by LongRoPE; `max_position_embeddings` where there is none."""
    sliding_window: int | None
    end_ids: tuple[int, ...]
    """Every id that ends an answer: config, generation_config and tokenizer together, sorted. 0 is an id."""
    bos_id: int | None
    pad_id: int | None
    chat_template: bool
    parameters: int
    embedding_parameters: int
    weight_bytes: int
    quantization: Mapping[str, Any] | None
    """How the checkpoint is already quantized, as its config says."""
    notes: tuple[str, ...] = ()
    """What is odd but workable."""


def model_info(
    folder: Path,
    config: Mapping[str, Any],
    generation: Mapping[str, Any],
    tokenizer_config: Mapping[str, Any],
    ids: Mapping[str, int],
    weights: Weights,
) -> ModelInfo:
    """The facts of a checkpoint from its parsed files; `ids` is its tokenizer's vocabulary.

    Raises CheckpointError if a size in the config is unusable.
    """

    config = complete(config)

    def number(key: str, default: int | None = None) -> int:
        return whole_number(config, key, default, where=folder / "config.json")

    heads = number("num_attention_heads")
    experts, inner = EXPERTS.get(str(config.get("model_type")), (None, "intermediate_size"))
    tied = bool(config.get("tie_word_embeddings", False))
    embedding = weights.tensors.get(EMBEDDING)
    stored_twice = tied and HEAD in weights.tensors
    return ModelInfo(
        architecture=config["architectures"][0],
        model_type=str(config.get("model_type", "")),
        num_layers=number("num_hidden_layers"),
        hidden_size=number("hidden_size"),
        num_attention_heads=heads,
        num_kv_heads=number("num_key_value_heads", heads),
        head_dim=number("head_dim", number("hidden_size") // heads),
        intermediate_size=number(inner),
        num_experts=number(experts) if experts else 0,
        vocab_size=number("vocab_size"),
        max_position_embeddings=number("max_position_embeddings"),
        dtype=_dtype(config, embedding.dtype if embedding else ""),
        tied_embeddings=tied,
        rope=_rope(config),
        trained_positions=number("original_max_position_embeddings", number("max_position_embeddings")),
        sliding_window=sliding_window(config),
        end_ids=_end_ids(config, generation, tokenizer_config, ids),
        bos_id=_first_id(config.get("bos_token_id"), generation.get("bos_token_id")),
        pad_id=_first_id(config.get("pad_token_id"), generation.get("pad_token_id")),
        chat_template=_has_chat_template(folder, tokenizer_config),
        parameters=sum(t.size for name, t in weights.tensors.items() if not (stored_twice and name == HEAD)),
        embedding_parameters=embedding.size if embedding else 0,
        weight_bytes=weights.byte_count,
        quantization=stored_quantization(folder, config),
        notes=tuple(_notes(config, weights, stored_twice, ids)),
    )


def _end_ids(
    config: Mapping[str, Any],
    generation: Mapping[str, Any],
    tokenizer_config: Mapping[str, Any],
    ids: Mapping[str, int],
) -> tuple[int, ...]:
    found: set[int] = set()
    for value in (config.get("eos_token_id"), generation.get("eos_token_id")):
        found.update(value if isinstance(value, list) else [value] if isinstance(value, int) else [])
    token = tokenizer_config.get("eos_token")
    name = token.get("content") if isinstance(token, dict) else token
    if isinstance(name, str) and name in ids:
        found.add(ids[name])
    return tuple(sorted(found))


def whole_number(config: Mapping[str, Any], key: str, default: int | None = None, *, where: Path) -> int:
    """A size in a config.json. Raises CheckpointError if it is no whole number above 0."""
    value = config.get(key)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise CheckpointError(
            f"`{key}` must be a whole number above 0, not {value!r}",
            where=str(where),
            fix="Restore the model's own config.json.",
            rule="checkpoint.config",
        )
    return value


def sliding_window(config: Mapping[str, Any]) -> int | None:
    """Tokens that attention looks back, if the model limits them."""
    # Qwen writes a window and a switch that is off unless set; others have no switch, and Llama no window.
    used = config.get("use_sliding_window", not str(config.get("model_type")).startswith(("llama", "qwen")))
    window = config.get("sliding_window")
    return window if used and isinstance(window, int) else None


def _first_id(*values: Any) -> int | None:
    return next((value for value in values if isinstance(value, int)), None)


def _dtype(config: Mapping[str, Any], stored: str) -> str:
    named = config.get("dtype") or config.get("torch_dtype") or _DTYPES.get(stored, stored.lower())
    return str(named).removeprefix("torch.")


def _rope(config: Mapping[str, Any]) -> dict[str, Any]:
    return {"theta": config.get("rope_theta", 10000.0), "scaling": config.get("rope_scaling") or None}


def _has_chat_template(folder: Path, tokenizer_config: Mapping[str, Any]) -> bool:
    files = ("chat_template.jinja", "chat_template.json")
    return bool(tokenizer_config.get("chat_template")) or any((folder / name).is_file() for name in files)


def stored_quantization(folder: Path, config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """How a checkpoint is quantized already, as its config or ModelOpt's own file says; None: it is not."""
    named = config.get("quantization_config")
    if isinstance(named, dict):
        return named
    exported = folder / "hf_quant_config.json"  # ModelOpt's own file, for TensorRT-LLM
    return read_json(exported).get("quantization") if exported.is_file() else None


def _notes(config: Mapping[str, Any], weights: Weights, stored_twice: bool, ids: Mapping[str, int]) -> Iterable[str]:
    if stored_twice and not weights.same_bytes(EMBEDDING, HEAD):
        yield f"`{HEAD}` differs from the `{EMBEDDING}` it is tied to; the embedding is used for both"
    largest = max(ids.values(), default=0)
    if largest >= config["vocab_size"]:
        yield f"the tokenizer has ids up to {largest}, beyond the vocabulary of {config['vocab_size']}"
