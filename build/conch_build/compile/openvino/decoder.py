"""The graph of a decoder, cut at its attentions (see `attention`). Llama's; `family` says what others do otherwise.

Tokens of all sequences of a step lie behind each other in one row; nothing is padded.

inputs   input_ids, position_ids        i64 [tokens]
         sampled_rows                   i64 [rows]          rows of `input_ids` whose next token is wanted
outputs  top_ids i32, top_logits f32    [rows, K]           the K best candidates, best first
         logits f32                     [rows, vocab]

Each linear layer's MatMul has the name of its module; parts of a fused module, and experts, see `_parts` and `moe`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino.opset15 as op

from conch_build.compile.openvino import rope
from conch_build.compile.openvino.family import describe
from conch_build.compile.openvino.linear import Node, apply, constant, weight
from conch_build.compile.openvino.moe import mixture
from conch_build.compile.openvino.weights import Weights, read_config
from conch_build.families import complete, windows


class Decoder:
    """Builds the graph of one checkpoint. `max_seq_len` bounds positions, `candidates` is K."""

    def __init__(self, directory: Path, *, max_seq_len: int, candidates: int) -> None:
        self.weights = Weights(directory)
        self.config = complete(read_config(directory))
        self.family = describe(self.config)
        self.windows = windows(self.config)
        self.heads: int = self.config["num_attention_heads"]
        self.kv_heads: int = self.config.get("num_key_value_heads") or self.heads
        self.head_dim: int = self.config.get("head_dim") or self.config["hidden_size"] // self.heads
        self.epsilon: float = self.config.get("rms_norm_eps", 1e-6)
        self.head = self.weights.head(tied=self.config.get("tie_word_embeddings", False))
        self.candidates = min(candidates, len(self.head.values))
        self.tables = rope.tables(self.config, max_seq_len, where=f"{directory}/config.json")
        self.local_tables = rope.local_tables(self.config, max_seq_len)
        self.parameters: list[Node] = []
        self.results: list[Node] = []

    def build(self) -> ov.Model:
        input_ids, positions, rows = (
            self._parameter(name, [-1], np.int64) for name in ("input_ids", "position_ids", "sampled_rows")
        )
        hidden = op.gather(weight(self.weights.linear("model.embed_tokens")), input_ids, constant(0, np.int64))
        if self.family.embedding_scale != 1:
            hidden = op.multiply(hidden, constant(self.family.embedding_scale, np.float32))
        angles = self._angles(self.tables, positions)
        local_angles = self._angles(self.local_tables, positions) if self.local_tables else angles
        for layer, window in enumerate(self.windows):
            hidden = self._layer(layer, hidden, local_angles if window else angles)
        hidden = op.gather(hidden, rows, constant(0, np.int64))
        logits = apply(self._norm("model.norm", hidden), self.head, "lm_head")
        if self.family.logit_softcap:
            cap = constant(self.family.logit_softcap, np.float32)
            logits = op.multiply(op.tanh(op.divide(logits, cap)), cap)
        best = op.topk(logits, constant(self.candidates, np.int64), -1, "max", "value", index_element_type="i32")
        top_ids = self._target_ids(best.output(1))
        for name, output in (("top_ids", top_ids), ("top_logits", best.output(0)), ("logits", logits)):
            self._result(name, output)
        return ov.Model(self.results, self.parameters, "conch_decoder")

    def _target_ids(self, draft_ids: Node) -> Node:
        """Ids of the target's vocabulary, where the head is a draft's that knows only part of it (`d2t`)."""
        if "d2t" not in self.weights:
            return draft_ids
        offsets = self.weights.tensor("d2t").numpy()
        ids = (np.arange(len(offsets)) + offsets).astype(np.int32)
        return op.gather(constant(ids), draft_ids, constant(0, np.int64))

    def _layer(self, index: int, hidden: Node, angles: tuple[Node, Node]) -> Node:
        name, norms = f"model.layers.{index}", self.family.norms
        x = self._attention(index, self._norm(f"{name}.{norms.before_attention}", hidden), angles)
        hidden = op.add(hidden, self._norm(f"{name}.{norms.behind_attention}", x) if norms.behind_attention else x)
        x = self._mlp(name, self._norm(f"{name}.{norms.before_mlp}", hidden))
        return op.add(hidden, self._norm(f"{name}.{norms.behind_mlp}", x) if norms.behind_mlp else x)

    def _attention(self, index: int, x: Node, angles: tuple[Node, Node]) -> Node:
        name = f"model.layers.{index}.self_attn"
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        if self.family.fused:
            query, key, value = self._parts(f"{name}.qkv_proj", x, {"q": queries, "k": keys, "v": keys})
        else:
            query, key, value = (self._linear(f"{name}.{part}_proj", x) for part in "qkv")
        query = self._rotate(query, self.heads, angles, norm=f"{name}.q_norm")
        key = self._rotate(key, self.kv_heads, angles, norm=f"{name}.k_norm")
        # The cut that `attention.load_model` closes: three ends here, one start behind it.
        for part, output in (("query", query), ("key", key), ("value", value)):
            self._result(f"{part}.{index}", output)
        attended = self._parameter(f"attention.{index}", [-1, queries], np.float32)
        return self._linear(f"{name}.o_proj", attended)

    def _mlp(self, layer: str, x: Node) -> Node:
        experts = self.family.experts
        if experts is not None:
            return mixture(self.weights, f"{layer}.{experts.module}", x, experts)
        name = f"{layer}.mlp"
        if self.family.fused:
            inner: int = self.config["intermediate_size"]
            gate, up = self._parts(f"{name}.gate_up_proj", x, {"gate": inner, "up": inner})
        else:
            gate, up = self._linear(f"{name}.gate_proj", x), self._linear(f"{name}.up_proj", x)
        active = op.swish(gate) if self.family.activation == "silu" else op.gelu(gate, "tanh")
        return self._linear(f"{name}.down_proj", op.multiply(active, up))

    def _linear(self, name: str, x: Node) -> Node:
        return apply(x, self.weights.linear(name), name)

    def _parts(self, name: str, x: Node, sizes: dict[str, int]) -> list[Node]:
        """Parts of a fused linear layer, each a matmul called `<name>.<part>`: faster than one that is split behind."""
        whole, found, start = self.weights.linear(name), [], 0
        for part, size in sizes.items():
            found.append(apply(x, whole.rows(slice(start, start + size)), f"{name}.{part}"))
            start += size
        return found

    def _norm(self, name: str, x: Node) -> Node:
        gamma = self.weights.floats(f"{name}.weight") + np.float32(self.family.norms.offset)
        mean = op.reduce_mean(op.power(x, constant(2, np.float32)), constant([-1], np.int64), True)
        root = op.sqrt(op.add(mean, constant(self.epsilon, np.float32)))
        return op.multiply(op.multiply(x, op.divide(constant(1, np.float32), root)), constant(gamma))

    def _rotate(self, x: Node, heads: int, angles: tuple[Node, Node], *, norm: str) -> Node:
        """Rotary embedding of [tokens, heads * head_dim], after the per-head norm where the family has one.

        Written as OpenVINO's RoPE fusion expects it: x * cos + concat(-second half, first half) * sin. The tables
        may be narrower than the head; what is behind them stays as it is.
        """
        width = self.tables[0].shape[1]
        x = op.reshape(x, constant([-1, heads, 1, self.head_dim], np.int64), False)
        if f"{norm}.weight" in self.weights:
            x = self._norm(norm, x)
        kept = _last(x, width) if width < self.head_dim else None
        if kept is not None:
            x = _last(x, 0, width)
        cos, sin = angles
        turned = op.concat([op.multiply(_last(x, width // 2), constant(-1, np.float32)), _last(x, 0, width // 2)], -1)
        rotated = op.add(op.multiply(x, cos), op.multiply(turned, sin))
        if kept is not None:
            rotated = op.concat([rotated, kept], -1)
        return op.reshape(rotated, constant([-1, heads * self.head_dim], np.int64), False)

    def _angles(self, tables: rope.Tables, positions: Node) -> tuple[Node, Node]:
        cos, sin = (
            op.reshape(
                op.gather(constant(table), positions, constant(0, np.int64)),
                constant([-1, 1, 1, table.shape[1]], np.int64),
                False,
            )
            for table in tables
        )
        return cos, sin

    def _parameter(self, name: str, shape: list[int], dtype: Any) -> Node:
        node = op.parameter(ov.PartialShape(shape), dtype, name=name)
        node.output(0).set_names({name})
        self.parameters.append(node)
        return node

    def _result(self, name: str, output: Node) -> None:
        result = op.result(output)
        result.set_friendly_name(name)
        result.output(0).set_names({name})
        self.results.append(result)


def _last(x: Node, start: int, stop: int = np.iinfo(np.int64).max) -> Node:
    """x[:, :, :, start:stop]"""
    return op.slice(x, *(constant([number], np.int64) for number in (start, stop, 1, 3)))
