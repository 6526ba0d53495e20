"""What of a model's weights lies on one GPU, when its layers, heads and experts are spread over several.

As TensorRT-LLM splits them: what a layer puts out over tensor ranks (attention by whole heads, KV heads copied where
there are fewer than ranks), what it takes in likewise for the second matrix of a pair; experts by the expert ranks;
norms and routers on every GPU. Knows nothing of plans and of GPUs' sizes.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from itertools import pairwise
from math import prod

from conch_build.families import layers
from conch_build.gpu.storage import Storage
from conch_build.model_info import ModelInfo

Shape = tuple[int, ...]

_OUTPUT_SPLIT = ("q_proj", "gate_proj", "up_proj", "gate_up_proj", "w1", "w3", "q_b_proj", "kv_b_proj")
_INPUT_SPLIT = ("o_proj", "down_proj", "w2")
_ROUTERS = ("gate", "shared_expert_gate")


@dataclass(frozen=True)
class Split:
    """Over how many GPUs: `tensor` x `pipeline` of them, `expert` of the tensor ones hold different experts."""

    tensor: int = 1
    pipeline: int = 1
    expert: int = 1

    @property
    def gpus(self) -> int:
        return self.tensor * self.pipeline


@dataclass(frozen=True)
class WeightBytes:
    """Bytes on one GPU."""

    linear: int
    """Layers that are quantized."""
    other: int
    """Norms, routers and biases."""
    embedding: int
    head: int

    @property
    def total(self) -> int:
        return self.linear + self.other + self.embedding + self.head


def stage_layers(num_layers: int, pipeline: int) -> list[range]:
    """The layers of each pipeline stage, as even as can be, the first ones the larger."""
    size, more = divmod(num_layers, pipeline)
    ends = [0]
    for stage in range(pipeline):
        ends.append(ends[-1] + size + (stage < more))
    return [range(start, end) for start, end in pairwise(ends)]


def kv_heads_per_gpu(num_kv_heads: int, tensor: int) -> int:
    """KV heads that a tensor rank computes and caches: at least one, copied where there are fewer than ranks."""
    return max(1, -(-num_kv_heads // tensor))


def weight_bytes(
    info: ModelInfo, storage: Storage, split: Split = Split(), *, whole_embedding: bool = False, shared: bool = False
) -> WeightBytes:
    """Weights on the GPU that holds most. Embedding and head stay in 16 bits.

    `whole_embedding`: every tensor rank has all of it; `shared`: a tied head is the embedding's memory.
    """
    shapes = list(layers(info))
    sizes = {id(layer): _layer_bytes(layer, info, storage, split) for layer in shapes}
    table = 2 * info.vocab_size * info.hidden_size
    embedding = table if whole_embedding else -(-table // split.tensor)
    head = 0 if shared and info.tied_embeddings and split.pipeline == 1 else -(-table // split.tensor)
    stages = []
    for number, stage in enumerate(stage_layers(info.num_layers, split.pipeline)):
        linear = sum(sizes[id(shapes[index])][0] for index in stage)
        other = sum(sizes[id(shapes[index])][1] for index in stage) + 2 * info.hidden_size
        first, last = number == 0, number == split.pipeline - 1
        stages.append(WeightBytes(linear, other, embedding if first else 0, head if last else 0))
    return max(stages, key=lambda stage: stage.total)


def adapter_bytes(
    info: ModelInfo, rank: int, split: Split = Split(), projections: Collection[str] | None = None
) -> int:
    """16-bit LoRA weights of one adapter of `rank` on the fullest GPU.

    `projections`: the layers' last names, as `q_proj`; None: every linear layer but experts and routers.
    """
    total = 0
    shapes = list(layers(info))
    for index in stage_layers(info.num_layers, split.pipeline)[0]:
        for name, shape in shapes[index].items():
            module = _module(name)
            adapted = module not in _ROUTERS if projections is None else module in projections
            if adapted and len(shape) == 2 and ".experts." not in name:
                total += 2 * rank * sum(_on_one_gpu(name, shape, info, split))
    return total


def _layer_bytes(layer: dict[str, Shape], info: ModelInfo, storage: Storage, split: Split) -> tuple[int, int]:
    """Linear layers, and the rest, of one layer on one GPU."""
    linear = other = 0
    experts = -(-info.num_experts // split.expert) if info.num_experts else 0
    for name, shape in layer.items():
        copies = 1
        if ".experts." in name:
            if ".experts.0." not in name:
                continue
            copies = experts
        own = _on_one_gpu(name, shape, info, split)
        if len(own) == 2 and _module(name) not in _ROUTERS:
            linear += copies * storage.bytes_of(*own)
        else:
            other += copies * 2 * prod(own)
    return linear, other


def _on_one_gpu(name: str, shape: Shape, info: ModelInfo, split: Split) -> Shape:
    module = _module(name)
    tensor = max(1, split.tensor // split.expert) if ".experts." in name else split.tensor
    if len(shape) == 1:
        return shape
    rows, columns = shape
    if module in ("k_proj", "v_proj"):
        rows = kv_heads_per_gpu(info.num_kv_heads, tensor) * info.head_dim
    elif module == "qkv_proj":
        queries = -(-info.num_attention_heads // tensor)
        rows = (queries + 2 * kv_heads_per_gpu(info.num_kv_heads, tensor)) * info.head_dim
    elif module in _OUTPUT_SPLIT:
        rows = -(-rows // tensor)
    elif module in _INPUT_SPLIT:
        columns = -(-columns // tensor)
    return rows, columns


def _module(name: str) -> str:
    return name.rsplit(".", 2)[-2]
