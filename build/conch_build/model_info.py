"""What a checkpoint is: architecture, sizes, end tokens, from its parsed JSON files and weight headers.

Where there are no weights yet, they are counted from the config. Whether the files are whole and fit to be compiled is
for `inspection`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

from conch_build.config_types import LARGEST_SIZE, MOST_EXPERTS, MOST_LAYERS, config_error
from conch_build.families import EMBEDDING, EXPERTS, HEAD, chosen_biases, complete, expected_tensors, windows
from conch_build.files import read_json
from conch_build.weights import Weights

_DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}


@dataclass(frozen=True)
class Latent:
    """Multi-head latent attention: what is cached of a token is one vector for all heads, and one rotated key."""

    kv_rank: int
    rope_head_dim: int
    nope_head_dim: int
    value_head_dim: int
    query_rank: int
    """0: queries are projected in one step."""


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
    weights_present: bool = True
    """False: config.json alone is there, and `parameters` and `weight_bytes` are computed from it."""
    attention_bias: bool = False
    mlp_bias: bool = False
    """Biases that the config asks for; those that a family always has aside."""
    experts_per_token: int = 0
    dense_layers: frozenset[int] = frozenset()
    """Layers of a mixture of experts that have none."""
    dense_intermediate_size: int = 0
    """Of those layers' MLP."""
    shared_intermediate_size: int = 0
    """Of the expert that every token goes through, if there is one."""
    latent: Latent | None = None
    """None: keys and values are cached as they are."""
    windows: tuple[int, ...] = ()
    """Tokens that each layer looks back; 0, or no number for it: all."""


def model_info(
    folder: Path,
    config: Mapping[str, Any],
    generation: Mapping[str, Any],
    tokenizer_config: Mapping[str, Any],
    ids: Mapping[str, int],
    weights: Weights | None,
) -> ModelInfo:
    """The facts of a checkpoint from its parsed files; `ids` is its tokenizer's vocabulary, `weights` None: not there.

    Raises CheckpointError if a size in the config is unusable.
    """

    config = complete(config)

    def number(key: str, default: int | None = None) -> int:
        return whole_number(config, key, default, where=folder / "config.json")

    heads = number("num_attention_heads")
    experts, inner = EXPERTS.get(str(config.get("model_type")), (None, "intermediate_size"))
    tied = bool(config.get("tie_word_embeddings", False))
    tensors = weights.tensors if weights else {}
    embedding = tensors.get(EMBEDDING)
    stored_twice = tied and HEAD in tensors
    info = ModelInfo(
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
        parameters=sum(t.size for name, t in tensors.items() if not (stored_twice and name == HEAD)),
        embedding_parameters=embedding.size if embedding else 0,
        weight_bytes=weights.byte_count if weights else 0,
        quantization=stored_quantization(folder, config),
        notes=tuple(_notes(config, weights, stored_twice, ids)),
        weights_present=weights is not None,
        attention_bias=bool(config.get("attention_bias", False)),
        mlp_bias=bool(config.get("mlp_bias", False)),
        experts_per_token=number("num_experts_per_tok") if experts else 0,
        dense_layers=_dense_layers(config) if experts else frozenset(),
        dense_intermediate_size=number("intermediate_size") if experts else 0,
        shared_intermediate_size=_shared_size(config, number),
        latent=_latent(config, number),
        windows=tuple(windows(config)),
    )
    if len(info.windows) != info.num_layers:
        what = f"`layer_types` names {len(info.windows)} layers, and there are {info.num_layers}"
        raise config_error(what, folder / "config.json")
    if info.num_layers * info.num_experts > MOST_EXPERTS:
        what = f"{info.num_layers:,} layers of {info.num_experts:,} experts are more than a model can have"
        raise config_error(what, folder / "config.json")
    return info if weights else _counted(info)


def counted_parameters(info: ModelInfo) -> int:
    """Every weight that the config describes, biases included; a tied head counts once.

    Multi-token-prediction layers that some checkpoints bring beside the model are not part of it.
    """
    biases = info.num_layers * sum(prod(shape) for shape in chosen_biases(info).values())
    return biases + sum(prod(shape) for shape in expected_tensors(info).values())


def _counted(info: ModelInfo) -> ModelInfo:
    parameters = counted_parameters(info)
    size = 4 if info.dtype == "float32" else 2
    embedding = info.vocab_size * info.hidden_size
    return replace(info, parameters=parameters, embedding_parameters=embedding, weight_bytes=size * parameters)


def _dense_layers(config: Mapping[str, Any]) -> frozenset[int]:
    count, step = config["num_hidden_layers"], config.get("decoder_sparse_step") or 1
    first = int(config.get("first_k_dense_replace") or 0)
    named = {index for index in config.get("mlp_only_layers") or () if isinstance(index, int)}
    return frozenset(
        index for index in range(count) if index < first or index in named or (step > 1 and (index + 1) % step)
    )


def _shared_size(config: Mapping[str, Any], number: Callable[[str], int]) -> int:
    if config.get("model_type") == "deepseek_v3":
        return number("moe_intermediate_size") * int(config.get("n_shared_experts") or 0)
    return int(config.get("shared_expert_intermediate_size") or 0)


def _latent(config: Mapping[str, Any], number: Callable[[str], int]) -> Latent | None:
    if not config.get("kv_lora_rank"):
        return None
    return Latent(
        kv_rank=number("kv_lora_rank"),
        rope_head_dim=number("qk_rope_head_dim"),
        nope_head_dim=number("qk_nope_head_dim"),
        value_head_dim=number("v_head_dim"),
        query_rank=config.get("q_lora_rank") or 0,
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
        raise config_error(f"`{key}` must be a whole number above 0, not {value!r}", where)
    most = MOST_LAYERS if key == "num_hidden_layers" else LARGEST_SIZE
    if value > most:
        raise config_error(f"`{key}` is more than the {most:,} that a model can have", where)
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


def _notes(
    config: Mapping[str, Any], weights: Weights | None, stored_twice: bool, ids: Mapping[str, int]
) -> Iterable[str]:
    if weights and stored_twice and not weights.same_bytes(EMBEDDING, HEAD):
        yield f"`{HEAD}` differs from the `{EMBEDDING}` it is tied to; the embedding is used for both"
    largest = max(ids.values(), default=0)
    if largest >= config["vocab_size"]:
        yield f"the tokenizer has ids up to {largest}, beyond the vocabulary of {config['vocab_size']}"
