"""How each family of decoders is computed where it differs from Llama, read from `config.json`.

Knows nothing of OpenVINO and opens no file; rotary embeddings are `rope`'s.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

Config = dict[str, Any]


@dataclass(frozen=True)
class Norms:
    """Names of a layer's norms: in front of attention and MLP, and behind them, before the residual is added."""

    before_attention: str = "input_layernorm"
    behind_attention: str | None = None
    before_mlp: str = "post_attention_layernorm"
    behind_mlp: str | None = None
    offset: float = 0.0
    """Added to the stored weights."""


@dataclass(frozen=True)
class Experts:
    """A mixture of experts in the MLP's place: a router and `count` small MLPs, `per_token` of which see a token."""

    count: int
    per_token: int
    normalized: bool
    """The weights of a token's experts sum up to one."""
    module: str = "mlp"
    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"


@dataclass(frozen=True)
class Family:
    """The defaults are Llama."""

    norms: Norms = Norms()
    activation: Literal["silu", "gelu_tanh"] = "silu"
    fused: bool = False
    """One linear layer holds q, k and v, another gate and up."""
    embedding_scale: float = 1.0
    attention_scale: float | None = None
    """Of queries times keys; None: 1/sqrt(head_dim)."""
    attention_softcap: float | None = None
    """Scores s become cap * tanh(s / cap)."""
    logit_softcap: float | None = None
    experts: Experts | None = None


def _phi3(config: Config) -> Family:
    return Family(fused=True)


def _gemma2(config: Config) -> Family:
    return Family(
        norms=Norms(
            behind_attention="post_attention_layernorm",
            before_mlp="pre_feedforward_layernorm",
            behind_mlp="post_feedforward_layernorm",
            offset=1.0,
        ),
        activation="gelu_tanh",
        embedding_scale=config["hidden_size"] ** 0.5,
        attention_scale=config["query_pre_attn_scalar"] ** -0.5,
        attention_softcap=config["attn_logit_softcapping"],
        logit_softcap=config["final_logit_softcapping"],
    )


def _mixtral(config: Config) -> Family:
    count, per_token = config["num_local_experts"], config["num_experts_per_tok"]
    return Family(experts=Experts(count, per_token, True, "block_sparse_moe", gate="w1", up="w3", down="w2"))


def _qwen3_moe(config: Config) -> Family:
    return Family(experts=Experts(config["num_experts"], config["num_experts_per_tok"], config["norm_topk_prob"]))


_FAMILIES: dict[str, Callable[[Config], Family]] = {
    "phi3": _phi3,
    "gemma2": _gemma2,
    "gemma3_text": _gemma2,  # beside norms of queries and keys, which show in the weights
    "mixtral": _mixtral,
    "qwen3_moe": _qwen3_moe,
}


def describe(config: Config) -> Family:
    """The family of a checkpoint, by its `model_type`."""
    special = _FAMILIES.get(config["model_type"])
    return special(config) if special else Family()
