"""The model families that can be compiled: their architecture names and the tensors each must bring.

Shapes only; knows nothing of files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from conch_build.model_info import ModelInfo

COMPILABLE: frozenset[str] = frozenset(
    {"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"}
)
"""Architectures that the openvino backend compiles, as `config.json` names them."""

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"

Shape = tuple[int, ...]


def expected_tensors(info: ModelInfo) -> dict[str, Shape]:
    """Name -> shape of every weight that an unquantized checkpoint must hold (biases that the config chooses aside).

    A weight that is absent would be filled with random numbers by the loader, which only warns.
    """
    hidden, inner = info.hidden_size, info.intermediate_size
    queries, keys = info.num_attention_heads * info.head_dim, info.num_kv_heads * info.head_dim
    layer: dict[str, Shape] = {
        "input_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (queries, hidden),
        "self_attn.k_proj.weight": (keys, hidden),
        "self_attn.v_proj.weight": (keys, hidden),
        "self_attn.o_proj.weight": (hidden, queries),
        "post_attention_layernorm.weight": (hidden,),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
    }
    if info.architecture == "Qwen2ForCausalLM":
        layer.update(
            {f"self_attn.{part}_proj.bias": (size,) for part, size in zip("qkv", (queries, keys, keys), strict=True)}
        )
    if info.architecture == "Qwen3ForCausalLM":
        layer.update({f"self_attn.{part}_norm.weight": (info.head_dim,) for part in "qk"})
    tensors: dict[str, Shape] = {EMBEDDING: (info.vocab_size, hidden), "model.norm.weight": (hidden,)}
    if not info.tied_embeddings:
        tensors[HEAD] = (info.vocab_size, hidden)
    for index in range(info.num_layers):
        tensors.update({f"model.layers.{index}.{name}": shape for name, shape in layer.items()})
    return tensors


def linear_widths(info: ModelInfo) -> dict[str, int]:
    """Input width of the linear layers that are quantized, by the layers' names."""
    return {
        "q_proj, k_proj, v_proj, gate_proj, up_proj": info.hidden_size,
        "o_proj": info.num_attention_heads * info.head_dim,
        "down_proj": info.intermediate_size,
    }
