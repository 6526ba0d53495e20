"""Paged attention: cut out of the stored graph, put back when the graph is loaded.

OpenVINO's paged attention node cannot be written to an IR file. The stored graph therefore ends before each
attention in three results (`query.N`, `key.N`, `value.N`) and goes on behind it from a parameter (`attention.N`);
`load_model` joins them again.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import openvino as ov
import openvino.opset15 as op
from openvino.op import _PagedAttentionExtension

from conch_build.compile.openvino.linear import Node, constant
from conch_build.compile.openvino.softcap import SoftcappedAttention, cache_shape
from conch_build.manifest import EngineManifest

SHARED_INPUTS = ("past_lens", "subsequence_begins", "block_indices", "block_indices_begins", "max_context_len")
"""Inputs of the whole step that every attention reads: i32 [sequences], [sequences+1], [blocks], [sequences+1], []."""


def load_model(model_file: Path, manifest: EngineManifest) -> ov.Model:
    """The stored graph with paged attention in it, ready for `Core.compile_model`.

    Adds the inputs of SHARED_INPUTS and `key_cache.N`, `value_cache.N` for each layer; type and shape of the caches
    are chosen at compile time.
    """
    model = ov.Core().read_model(model_file)
    parameters = {parameter.get_friendly_name(): parameter for parameter in model.get_parameters()}
    results = {result.get_friendly_name(): result for result in model.get_results()}
    shared = {name: _parameter(name, [] if name == "max_context_len" else [-1], np.int32) for name in SHARED_INPUTS}
    model.add_parameters(list(shared.values()))
    for layer, window in enumerate(manifest.sliding_windows):
        ends = [results[f"{part}.{layer}"] for part in ("query", "key", "value")]
        qkv = [end.input_value(0) for end in ends]
        if manifest.attention_softcap is None:
            caches = [_parameter(f"{kind}_cache.{layer}", [-1] * 4, ov.Type.dynamic) for kind in ("key", "value")]
            attention = _attention(qkv, caches, shared, manifest, window)
        else:
            caches = [_parameter(f"{kind}_cache.{layer}", cache_shape(manifest), np.uint8) for kind in ("key", "value")]
            attention = _softcapped(qkv, caches, shared, manifest, window)
        hole = parameters[f"attention.{layer}"]
        for consumer in hole.output(0).get_target_inputs():
            consumer.replace_source_output(attention.output(0))
        model.add_parameters(caches)
        model.remove_parameter(hole)
        for end in ends:
            model.remove_result(end)
    model.validate_nodes_and_infer_types()
    return model


def _attention(
    qkv: list[Node], caches: list[Node], shared: dict[str, Node], manifest: EngineManifest, window: int
) -> Node:
    ints, floats, zero = constant([], np.int32), constant([], np.float32), constant(0, np.int32)
    *tables, max_context_len = (shared[name] for name in SHARED_INPUTS)
    inputs = [
        *(*qkv, *caches, *tables),
        constant(manifest.query_scale, np.float32),
        constant(window, np.int32),
        floats,  # alibi slopes
        max_context_len,
        *(ints, ints, ints, floats),  # score aggregation, rotation of cached blocks
        *(floats, zero, zero),  # sparse attention
        constant(np.zeros((0, 0, 0, 0)), np.float32),  # attention sinks
        *(zero, ints, ints, ints),  # cache eviction
        *(ints, constant([], np.uint8), ints),  # token types, bidirectional masks
    ]
    attention = _PagedAttentionExtension([node if isinstance(node, ov.Output) else node.output(0) for node in inputs])
    info = attention.get_rt_info()  # the plugin sizes the caches from these
    info["num_k_heads"] = info["num_v_heads"] = manifest.num_kv_heads
    info["k_head_size"] = info["v_head_size"] = manifest.head_dim
    return attention


def _softcapped(
    qkv: list[Node], caches: list[Node], shared: dict[str, Node], manifest: EngineManifest, window: int
) -> Node:
    tables = [shared[name] for name in SHARED_INPUTS if name != "max_context_len"]
    return SoftcappedAttention([*qkv, *(node.output(0) for node in (*caches, *tables))], manifest, window)


def _parameter(name: str, shape: list[int], dtype: object) -> Node:
    node = op.parameter(ov.PartialShape(shape), dtype, name=name)
    node.output(0).set_names({name})
    return node
