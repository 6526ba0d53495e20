"""The graph of a Llama-like decoder (Llama, Mistral, Qwen2, Qwen3), cut at its attentions (see `attention`).

Tokens of all sequences of a step lie behind each other in one row; nothing is padded.

inputs   input_ids, position_ids        i64 [tokens]
         sampled_rows                   i64 [rows]          rows of `input_ids` whose next token is wanted
outputs  top_ids i32, top_logits f32    [rows, K]           the K best candidates, best first
         logits f32                     [rows, vocab]
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino.opset15 as op

from conch_build.compile.openvino import rope
from conch_build.compile.openvino.linear import Node, apply, constant, weight
from conch_build.compile.openvino.weights import Weights, read_config


class Decoder:
    """Builds the graph of one checkpoint. `max_seq_len` bounds positions, `candidates` is K."""

    def __init__(self, directory: Path, *, max_seq_len: int, candidates: int) -> None:
        self.weights = Weights(directory)
        self.config = read_config(directory)
        self.heads: int = self.config["num_attention_heads"]
        self.kv_heads: int = self.config.get("num_key_value_heads") or self.heads
        self.head_dim: int = self.config.get("head_dim") or self.config["hidden_size"] // self.heads
        self.layers: int = self.config["num_hidden_layers"]
        self.epsilon: float = self.config.get("rms_norm_eps", 1e-6)
        self.candidates = min(candidates, self.config["vocab_size"])
        self.tables = rope.tables(directory, self.config, max_seq_len)
        self.parameters: list[Node] = []
        self.results: list[Node] = []

    def build(self) -> ov.Model:
        input_ids, positions, rows = (
            self._parameter(name, [-1], np.int64) for name in ("input_ids", "position_ids", "sampled_rows")
        )
        hidden = op.gather(weight(self.weights.linear("model.embed_tokens")), input_ids, constant(0, np.int64))
        cos, sin = (self._position_rows(table, positions) for table in self.tables)
        for layer in range(self.layers):
            hidden = self._layer(layer, hidden, cos, sin)
        hidden = op.gather(hidden, rows, constant(0, np.int64))
        logits = apply(
            self._norm("model.norm", hidden), self.weights.head(tied=self.config.get("tie_word_embeddings", False))
        )
        best = op.topk(logits, constant(self.candidates, np.int64), -1, "max", "value", index_element_type="i32")
        for name, output in (("top_ids", best.output(1)), ("top_logits", best.output(0)), ("logits", logits)):
            self._result(name, output)
        return ov.Model(self.results, self.parameters, "conch_decoder")

    def _layer(self, index: int, hidden: Node, cos: Node, sin: Node) -> Node:
        name = f"model.layers.{index}"
        x = self._norm(f"{name}.input_layernorm", hidden)
        query, key, value = (self._linear(f"{name}.self_attn.{part}_proj", x) for part in "qkv")
        query = self._rotate(query, self.heads, cos, sin, norm=f"{name}.self_attn.q_norm")
        key = self._rotate(key, self.kv_heads, cos, sin, norm=f"{name}.self_attn.k_norm")
        attended = self._attention(index, query, key, value)
        hidden = op.add(hidden, self._linear(f"{name}.self_attn.o_proj", attended))
        x = self._norm(f"{name}.post_attention_layernorm", hidden)
        gate, up = self._linear(f"{name}.mlp.gate_proj", x), self._linear(f"{name}.mlp.up_proj", x)
        return op.add(hidden, self._linear(f"{name}.mlp.down_proj", op.multiply(op.swish(gate), up)))

    def _linear(self, name: str, x: Node) -> Node:
        return apply(x, self.weights.linear(name))

    def _norm(self, name: str, x: Node) -> Node:
        gamma = self.weights.floats(f"{name}.weight")
        mean = op.reduce_mean(op.power(x, constant(2, np.float32)), constant([-1], np.int64), True)
        root = op.sqrt(op.add(mean, constant(self.epsilon, np.float32)))
        return op.multiply(op.multiply(x, op.divide(constant(1, np.float32), root)), constant(gamma))

    def _rotate(self, x: Node, heads: int, cos: Node, sin: Node, *, norm: str) -> Node:
        """Rotary embedding of [tokens, heads * head_dim], after the per-head norm where the family has one.

        Written as OpenVINO's RoPE fusion expects it: x * cos + concat(-second half, first half) * sin.
        """
        half, end = self.head_dim // 2, np.iinfo(np.int64).max
        x = op.reshape(x, constant([-1, heads, 1, self.head_dim], np.int64), False)
        if f"{norm}.weight" in self.weights:
            x = self._norm(norm, x)
        step, axis = constant([1], np.int64), constant([3], np.int64)
        first = op.slice(x, constant([0], np.int64), constant([half], np.int64), step, axis)
        second = op.slice(x, constant([half], np.int64), constant([end], np.int64), step, axis)
        turned = op.concat([op.multiply(second, constant(-1, np.float32)), first], -1)
        rotated = op.add(op.multiply(x, cos), op.multiply(turned, sin))
        return op.reshape(rotated, constant([-1, heads * self.head_dim], np.int64), False)

    def _attention(self, index: int, query: Node, key: Node, value: Node) -> Node:
        """The cut that `attention.load_model` closes: three ends here, one start behind it."""
        for name, output in (("query", query), ("key", key), ("value", value)):
            self._result(f"{name}.{index}", output)
        return self._parameter(f"attention.{index}", [-1, self.heads * self.head_dim], np.float32)

    def window(self, index: int) -> int:
        """Sliding window of a layer in tokens; 0 attends to everything."""
        window = self.config.get("sliding_window")
        if not window or not self.config.get("use_sliding_window", self.config["model_type"] == "mistral"):
            return 0
        kinds = self.config.get("layer_types")
        if kinds is not None:
            return int(window) if kinds[index] == "sliding_attention" else 0
        return int(window) if index >= self.config.get("max_window_layers", 0) else 0

    def _position_rows(self, table: Any, positions: Node) -> Node:
        rows = op.gather(constant(table), positions, constant(0, np.int64))
        return op.reshape(rows, constant([-1, 1, 1, self.head_dim], np.int64), False)

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
