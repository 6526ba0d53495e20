"""Architectures that TensorRT-LLM serves and no CPU engine does: their config's keys, and the shapes of their weights.

Shapes only, as `families` has them for those that compile everywhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from conch_build.model_info import ModelInfo

Shape = tuple[int, ...]

LIKE_LLAMA = frozenset({"GraniteForCausalLM", "GemmaForCausalLM", "SmolLM3ForCausalLM"})
"""Their layers have Llama's weights, whatever they compute with them."""

GPU_ONLY = LIKE_LLAMA | {"DeepseekV3ForCausalLM", "GptOssForCausalLM", "Qwen2MoeForCausalLM"}

DEFAULTS: dict[str, dict[str, Any]] = {
    "deepseek_v3": {
        "first_k_dense_replace": 3,
        "kv_lora_rank": 512,
        "moe_intermediate_size": 2048,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "q_lora_rank": 1536,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
    },
    "gemma": {"head_dim": 256, "tie_word_embeddings": True},
    "gpt_oss": {"attention_bias": True, "head_dim": 64, "num_experts_per_tok": 4, "num_local_experts": 128},
    "qwen2_moe": {
        "decoder_sparse_step": 1,
        "moe_intermediate_size": 1408,
        "num_experts": 60,
        "num_experts_per_tok": 4,
        "shared_expert_intermediate_size": 5632,
    },
    "smollm3": {"tie_word_embeddings": True},
}
"""By `model_type`: what transformers takes where the config is silent."""

EXPERTS: dict[str, tuple[str | None, str]] = {
    "deepseek_v3": ("n_routed_experts", "moe_intermediate_size"),
    "gpt_oss": ("num_local_experts", "intermediate_size"),
    "qwen2_moe": ("num_experts", "moe_intermediate_size"),
}
"""`model_type` of mixtures of experts -> the config's keys of how many there are and how wide one is."""


def latent_attention(info: ModelInfo) -> dict[str, Shape]:
    """DeepSeek's attention: keys and values of all heads come from one small vector a token."""
    hidden, heads, latent = info.hidden_size, info.num_attention_heads, info.latent
    assert latent is not None
    queries = heads * (latent.nope_head_dim + latent.rope_head_dim)
    shapes: dict[str, Shape] = {
        "kv_a_proj_with_mqa.weight": (latent.kv_rank + latent.rope_head_dim, hidden),
        "kv_a_layernorm.weight": (latent.kv_rank,),
        "kv_b_proj.weight": (heads * (latent.nope_head_dim + latent.value_head_dim), latent.kv_rank),
        "o_proj.weight": (hidden, heads * latent.value_head_dim),
    }
    if latent.query_rank:
        shapes["q_a_proj.weight"] = (latent.query_rank, hidden)
        shapes["q_a_layernorm.weight"] = (latent.query_rank,)
        shapes["q_b_proj.weight"] = (queries, latent.query_rank)
    else:
        shapes["q_proj.weight"] = (queries, hidden)
    return {f"self_attn.{name}": shape for name, shape in shapes.items()}


def beside_attention(info: ModelInfo) -> dict[str, Shape]:
    """gpt-oss: a learned number a head that takes attention away from every token."""
    return {"self_attn.sinks": (info.num_attention_heads,)} if info.architecture == "GptOssForCausalLM" else {}


def beside_experts(info: ModelInfo) -> dict[str, Shape]:
    """What a layer with experts has beside them: an expert for every token, and what balances the others."""
    hidden, experts, inner = info.hidden_size, info.num_experts, info.intermediate_size
    if info.architecture == "DeepseekV3ForCausalLM":
        shared = _mlp("mlp.shared_experts", hidden, info.shared_intermediate_size)
        return {"mlp.gate.e_score_correction_bias": (experts,), **shared}
    if info.architecture == "Qwen2MoeForCausalLM":
        shared = _mlp("mlp.shared_expert", hidden, info.shared_intermediate_size)
        return {"mlp.shared_expert_gate.weight": (1, hidden), **shared}
    if info.architecture == "GptOssForCausalLM":
        biases = {f"mlp.experts.{number}.gate_up_proj.bias": (2 * inner,) for number in range(experts)}
        biases |= {f"mlp.experts.{number}.down_proj.bias": (hidden,) for number in range(experts)}
        return {"mlp.gate.bias": (experts,), **biases}
    return {}


def _mlp(module: str, hidden: int, inner: int) -> dict[str, Shape]:
    shapes = {"gate_proj": (inner, hidden), "up_proj": (inner, hidden), "down_proj": (hidden, inner)}
    return {f"{module}.{name}.weight": shape for name, shape in shapes.items()}
