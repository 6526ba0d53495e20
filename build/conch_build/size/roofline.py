"""What a machine's bandwidth and arithmetic allow at most: time of a prompt, of a decoding step, tokens a second.

The roofline (S. Williams et al., Communications of the ACM 52(4), 2009) of a transformer's inference (R. Pope et al.,
https://arxiv.org/abs/2211.05102, section 2): a step takes at least the time to read the weights and the cache, and at
least that of its multiplications. No engine reaches it; communication between GPUs is left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from conch_build.families import layers
from conch_build.gpu.cards import Gpu
from conch_build.gpu.storage import Storage
from conch_build.gpu.weights import weight_bytes
from conch_build.model_info import ModelInfo

FLOPS_IN = {"fp8": "fp8", "fp8_blocks": "fp8", "w4a8_awq": "fp8", "nvfp4": "fp4", "int8_sq": "int8"}
"""Format -> type that its matrices are multiplied in; others in 16 bits, whatever they are stored in."""


@dataclass(frozen=True)
class Machine:
    """`gpus` devices that hold one model together."""

    bandwidth_bytes_s: float
    flops: float
    gpus: int = 1
    stages: int = 1
    """Of a pipeline: groups of the GPUs that work on a token in turn, each on another part of the batch."""


@dataclass(frozen=True)
class Limits:
    """Lower bounds of times, upper ones of rates."""

    prefill_seconds: float
    prefill_bound: str
    """`arithmetic` or `bandwidth`."""
    prefill_tokens_s: float
    step_seconds: float
    """One token of every request."""
    step_bound: str
    decode_tokens_s: float
    """Of all requests together."""

    @property
    def request_tokens_s(self) -> float:
        return 1 / self.step_seconds


def machine_of(gpu: Gpu, form: str, gpus: int = 1, stages: int = 1) -> Machine:
    """GPUs that multiply weights of a format in its type, or in 16 bits where they have no units for that."""
    flops = gpu.flops.get(FLOPS_IN.get(form, "bf16"), gpu.flops["bf16"])
    return Machine(gpu.bandwidth_bytes_s, flops, gpus, stages)


def active_parameters(info: ModelInfo) -> int:
    """Weights that one token is multiplied with: no table of embeddings, the head, of a mixture the chosen experts."""
    total = info.vocab_size * info.hidden_size
    for layer in layers(info):
        for name, shape in layer.items():
            if len(shape) != 2 or (".experts." in name and ".experts.0." not in name):
                continue
            total += shape[0] * shape[1] * (info.experts_per_token if ".experts." in name else 1)
    return total


def prefill_flops(info: ModelInfo, tokens: int) -> float:
    """2 operations a weight and token, of the head one token's, and `4 x width` of attention a layer for each token
    looked back at, which are half of the prompt in the mean (J. Kaplan et al., https://arxiv.org/abs/2001.08361,
    section 2.1)."""
    head = info.vocab_size * info.hidden_size
    matrices = 2.0 * (tokens * (active_parameters(info) - head) + head)
    return matrices + tokens * _attention_flops(info, tokens, mean=True)


def decode_flops(info: ModelInfo, batch: int, context: int) -> float:
    """One token each for `batch` requests of `context` tokens."""
    return batch * (2.0 * active_parameters(info) + _attention_flops(info, context))


def touched_experts(experts: int, chosen: int, tokens: int) -> float:
    """Experts that at least one of `tokens` goes to, where each chooses at random: E (1 - (1 - k/E)^n)."""
    return experts * (1 - (1 - chosen / experts) ** tokens)


def read_weight_bytes(info: ModelInfo, storage: Storage, tokens: int) -> int:
    """Weights that a step over `tokens` reads: all but the table of embeddings and the experts that no token needs."""
    if info.num_experts:
        info = replace(info, num_experts=math.ceil(touched_experts(info.num_experts, info.experts_per_token, tokens)))
    weights = weight_bytes(info, storage)
    return weights.linear + weights.other + weights.head


def limits(
    info: ModelInfo, storage: Storage, machine: Machine, kv_token_bytes: float, *, prompt: int, context: int, batch: int
) -> Limits:
    """`batch` requests that have `context` tokens each; a `prompt` that is read alone. `kv_token_bytes`: in all
    layers, on all devices together."""
    bandwidth, flops = machine.gpus * machine.bandwidth_bytes_s, machine.gpus * machine.flops
    prefill = {
        "arithmetic": prefill_flops(info, prompt) / flops,
        "bandwidth": read_weight_bytes(info, storage, prompt) / bandwidth,
    }
    share = math.ceil(batch / machine.stages)
    read = read_weight_bytes(info, storage, share) + share * _seen(info, context) * kv_token_bytes
    step = {
        "arithmetic": machine.stages * decode_flops(info, share, context) / flops,
        "bandwidth": machine.stages * read / bandwidth,
    }
    prefill_bound, step_bound = (max(times, key=lambda bound: times[bound]) for times in (prefill, step))
    return Limits(
        prefill_seconds=prefill[prefill_bound],
        prefill_bound=prefill_bound,
        prefill_tokens_s=prompt / prefill[prefill_bound],
        step_seconds=step[step_bound],
        step_bound=step_bound,
        decode_tokens_s=batch / step[step_bound],
    )


def _seen(info: ModelInfo, context: int) -> float:
    """Tokens of the cache that a layer reads in the mean."""
    windows = info.windows or (0,) * info.num_layers
    return sum(min(context, window or context) for window in windows) / len(windows)


def _attention_flops(info: ModelInfo, context: int, *, mean: bool = False) -> float:
    width = info.num_attention_heads * info.head_dim
    seen = _seen(info, context)
    if mean:  # a token in the middle of a prompt; one past a window sees all of it
        seen = seen / 2 if not any(info.windows) else min(seen, context / 2)
    return 4.0 * info.num_layers * width * seen
