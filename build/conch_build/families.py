"""The model families: architecture names, configs made complete, the tensors each must bring.

Shapes only; knows nothing of files, nor of how a family is computed. Those of GPUs alone are in `gpu_families`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from conch_build.gpu import families as gpu_families

if TYPE_CHECKING:
    from conch_build.model_info import ModelInfo

ACTIVATIONS: dict[str, tuple[str, str]] = {
    **dict.fromkeys(
        (
            "LlamaForCausalLM",
            "MistralForCausalLM",
            "MixtralForCausalLM",
            "Phi3ForCausalLM",
            "Qwen2ForCausalLM",
            "Qwen3ForCausalLM",
            "Qwen3MoeForCausalLM",
        ),
        ("hidden_act", "silu"),
    ),
    **dict.fromkeys(("Gemma2ForCausalLM", "Gemma3ForCausalLM"), ("hidden_activation", "gelu_pytorch_tanh")),
}
"""Architecture -> the config's key of the activation, and the one that is compiled."""

COMPILABLE = frozenset(ACTIVATIONS)
"""Architectures that the openvino backend compiles, as `config.json` names them."""

ON_GPUS = COMPILABLE | gpu_families.GPU_ONLY
"""Architectures whose weights are known here, so that a GPU plan of them can be sized."""

_SYNONYMS = {"silu": ("swish",)}

_GEMMA: dict[str, Any] = {
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "tie_word_embeddings": True,
}
_DEFAULTS: dict[str, dict[str, Any]] = {
    "gemma2": {
        **_GEMMA,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "sliding_window_pattern": 2,
    },
    "gemma3_text": {
        **_GEMMA,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
        "sliding_window_pattern": 6,
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
    },
    "mixtral": {"num_local_experts": 8, "num_experts_per_tok": 2, "rope_theta": 1e6},
    "phi3": {"original_max_position_embeddings": 4096, "partial_rotary_factor": 1.0},
    "qwen3_moe": {
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
        "norm_topk_prob": False,
    },
    **gpu_families.DEFAULTS,
}
"""By `model_type`: what transformers takes where the config is silent, which it is wherever that value is meant."""

EXPERTS: dict[str, tuple[str | None, str]] = {
    "mixtral": ("num_local_experts", "intermediate_size"),
    "qwen3_moe": ("num_experts", "moe_intermediate_size"),
    **gpu_families.EXPERTS,
}
"""`model_type` of mixtures of experts -> the config's keys of how many there are and how wide one is."""

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"

Shape = tuple[int, ...]


def complete(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config with its family's defaults; `rope_parameters`, as transformers 5 writes them, under older names."""
    rope = dict(config.get("rope_parameters") or {})
    if "full_attention" in rope:  # Gemma 3: one mapping for each kind of layer
        local = rope.get("sliding_attention") or {}
        rope = dict(rope["full_attention"])
        rope.update({"rope_local_base_freq": local["rope_theta"]} if "rope_theta" in local else {})
    named = ("rope_theta", "rope_local_base_freq", "partial_rotary_factor", "original_max_position_embeddings")
    older = {key: rope[key] for key in named if key in rope}
    if rope.get("rope_type", "default") != "default":
        older["rope_scaling"] = rope
    completed = {**_DEFAULTS.get(str(config.get("model_type")), {}), **older, **config}
    scaling = completed.get("rope_scaling")
    if scaling and "short_factor" in scaling:  # Phi-3 has called its own by other names
        completed["rope_scaling"] = {**scaling, "rope_type": "longrope"}
    return completed


def windows(config: Mapping[str, Any]) -> list[int]:
    """Sliding window of each layer in tokens, by a complete config; 0 attends to everything."""
    kind, count = str(config.get("model_type")), config["num_hidden_layers"]
    window = config.get("sliding_window") or 0
    if not config.get("use_sliding_window", not kind.startswith(("llama", "qwen"))):
        window = 0
    types = config.get("layer_types")
    if types is not None:
        return [window if sort == "sliding_attention" else 0 for sort in types]
    if kind == "gpt_oss":
        return [window * (layer % 2 == 0) for layer in range(count)]
    if kind in ("gemma2", "gemma3_text"):  # the last of every few layers attends to everything
        return [window if (layer + 1) % config["sliding_window_pattern"] else 0 for layer in range(count)]
    first = (config.get("max_window_layers") or 0) if kind in ("qwen2", "qwen3") else 0
    return [window if layer >= first else 0 for layer in range(count)]


def refusal(config: Mapping[str, Any]) -> str | None:
    """Why a (complete) config of a compilable architecture cannot be compiled after all; None: it can."""
    key, activation = ACTIVATIONS[config["architectures"][0]]
    named = config.get(key, activation)
    if named not in (activation, *_SYNONYMS.get(activation, ())):
        return f"has `{key}` {named!r}; only `{activation}`, which its family has, can be compiled"
    if config.get("use_bidirectional_attention"):
        return "lets tokens attend to those behind them (`use_bidirectional_attention`)"
    if config.get("model_type") == "gemma3_text" and config["attn_logit_softcapping"]:
        return "caps attention scores (`attn_logit_softcapping`), which transformers does not do in its family"
    if config.get("mlp_only_layers") or config.get("decoder_sparse_step", 1) != 1:
        return "has experts in some layers only (`mlp_only_layers`, `decoder_sparse_step`)"
    return None


def expected_tensors(info: ModelInfo) -> dict[str, Shape]:
    """Name -> shape of every weight that an unquantized checkpoint must hold (biases that the config chooses aside).

    A weight that is absent would be filled with random numbers by the loader, which only warns.
    """
    tensors: dict[str, Shape] = {
        EMBEDDING: (info.vocab_size, info.hidden_size),
        "model.norm.weight": (info.hidden_size,),
    }
    if not info.tied_embeddings:
        tensors[HEAD] = (info.vocab_size, info.hidden_size)
    for index, layer in enumerate(layers(info)):
        tensors.update({f"model.layers.{index}.{name}": shape for name, shape in layer.items()})
    return tensors


def layers(info: ModelInfo) -> Iterator[dict[str, Shape]]:
    """Name within a layer -> shape, layer by layer; equal layers share a mapping."""
    usual = {**_attention(info), **_mlp(info), **_norms(info)}
    dense = {**_attention(info), **_dense_mlp(info), **_norms(info)} if info.dense_layers else usual
    for index in range(info.num_layers):
        yield dense if index in info.dense_layers else usual


def chosen_biases(info: ModelInfo) -> dict[str, Shape]:
    """Name within a layer -> shape of the biases that its config asks for beside those of the family."""
    weights = {**_attention(info), **_mlp(info)}
    chosen = [("self_attn.", info.attention_bias), ("mlp.", info.mlp_bias)]
    names = [name for prefix, has in chosen if has for name in weights if name.startswith(prefix)]
    biases = {name.replace(".weight", ".bias"): weights[name][:1] for name in names if name.endswith("_proj.weight")}
    return {name: shape for name, shape in biases.items() if name not in weights}


def linear_layers(info: ModelInfo) -> Iterator[str]:
    """Names of the layers that are quantized: all that multiply by a matrix, but head and routers."""
    for index, layer in enumerate(layers(info)):
        for name in _linear(layer):
            yield f"model.layers.{index}.{name}"


def linear_widths(info: ModelInfo) -> dict[str, int]:
    """Input width of the linear layers that are quantized, by the layers' names."""
    names: dict[int, dict[str, None]] = {}
    for layer in {id(layer): layer for layer in layers(info)}.values():
        for name, shape in _linear(layer).items():
            names.setdefault(shape[1], {})[name.rpartition(".")[2]] = None  # each name once, as experts share theirs
    return {", ".join(found): width for width, found in names.items()}


def _linear(layer: Mapping[str, Shape]) -> dict[str, Shape]:
    return {
        name.removesuffix(".weight"): shape for name, shape in layer.items() if len(shape) == 2 and name not in _ROUTERS
    }


def _attention(info: ModelInfo) -> dict[str, Shape]:
    if info.latent is not None:
        return gpu_families.latent_attention(info)
    hidden = info.hidden_size
    queries, keys = info.num_attention_heads * info.head_dim, info.num_kv_heads * info.head_dim
    output: dict[str, Shape] = {"self_attn.o_proj.weight": (hidden, queries)}
    if info.architecture == "Phi3ForCausalLM":
        return {"self_attn.qkv_proj.weight": (queries + 2 * keys, hidden), **output}
    sizes = {"q": queries, "k": keys, "v": keys}
    tensors: dict[str, Shape] = {f"self_attn.{part}_proj.weight": (size, hidden) for part, size in sizes.items()}
    tensors.update(output)
    if info.architecture in ("Qwen2ForCausalLM", "Qwen2MoeForCausalLM"):
        tensors.update({f"self_attn.{part}_proj.bias": (size,) for part, size in sizes.items()})
    if info.architecture in ("Qwen3ForCausalLM", "Qwen3MoeForCausalLM", "Gemma3ForCausalLM"):
        tensors.update({f"self_attn.{part}_norm.weight": (info.head_dim,) for part in "qk"})
    return tensors | gpu_families.beside_attention(info)


_ROUTERS = ("mlp.gate.weight", "block_sparse_moe.gate.weight", "mlp.shared_expert_gate.weight")


def _mlp(info: ModelInfo) -> dict[str, Shape]:
    hidden, inner = info.hidden_size, info.intermediate_size
    gate, up, down = (inner, hidden), (inner, hidden), (hidden, inner)
    if info.architecture == "Phi3ForCausalLM":
        return {"mlp.gate_up_proj.weight": (2 * inner, hidden), "mlp.down_proj.weight": down}
    if info.architecture == "MixtralForCausalLM":
        names, shapes, module = ("w1", "w3", "w2"), (gate, up, down), "block_sparse_moe"
    else:
        names, shapes, module = ("gate_proj", "up_proj", "down_proj"), (gate, up, down), "mlp"
    if not info.num_experts:
        return {f"{module}.{name}.weight": shape for name, shape in zip(names, shapes, strict=True)}
    router: dict[str, Shape] = {f"{module}.gate.weight": (info.num_experts, hidden)}
    router |= gpu_families.beside_experts(info)
    return router | {
        f"{module}.experts.{expert}.{name}.weight": shape
        for expert in range(info.num_experts)
        for name, shape in zip(names, shapes, strict=True)
    }


def _dense_mlp(info: ModelInfo) -> dict[str, Shape]:
    """Of the layers without experts in a mixture of experts."""
    hidden, inner = info.hidden_size, info.dense_intermediate_size
    shapes = {"gate_proj": (inner, hidden), "up_proj": (inner, hidden), "down_proj": (hidden, inner)}
    return {f"mlp.{name}.weight": shape for name, shape in shapes.items()}


def _norms(info: ModelInfo) -> dict[str, Shape]:
    names = ["input_layernorm", "post_attention_layernorm"]
    if info.architecture in ("Gemma2ForCausalLM", "Gemma3ForCausalLM"):
        names += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
    return {f"{name}.weight": (info.hidden_size,) for name in names}
