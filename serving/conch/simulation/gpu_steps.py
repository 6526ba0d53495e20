"""How long a step takes on GPUs, by the roofline of `conch size` and the share of it that engines reach. An estimate.

The longer of reading (weights once, the cache of every sequence) and multiplying, as in `conch_build.size.roofline`,
and two all-reduces a layer between GPUs that share the layers: a ring sends 2 (n - 1) / n times the data
(https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md). Windows of attention are not made use of.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from conch.engine.config import EngineConfig
from conch.simulation.replica import Hardware
from conch.simulation.steps import Shape
from conch_build.compile.precision import gpu_kv_dtype
from conch_build.errors import InputError, UnsupportedError
from conch_build.gpu.cards import Gpu
from conch_build.gpu.memory import gpu_memory, split_of
from conch_build.model_info import ModelInfo
from conch_build.plan import Plan
from conch_build.size.cache import cache_of, short_dtype
from conch_build.size.fleet import placed
from conch_build.size.report import format_of, storage_in
from conch_build.size.roofline import active_parameters, machine_of, read_weight_bytes

_ACTIVATION_BYTES = 2
_PCIE_BYTES_S = 32e9
"""One direction of PCI Express 4.0 x16, between GPUs without NVLink."""
_ALL_REDUCE_SECONDS = 8e-6
"""Until the first byte of an all-reduce is through."""


@dataclass(frozen=True)
class Efficiency:
    """Shares of a data sheet's figures that engines reach. Assumptions: measure your own and give them.

    Arithmetic: 76 % in large batches of prompts is the best published of a tuned system (R. Pope et al.,
    https://arxiv.org/abs/2211.05102, abstract); 60 % leaves room for attention and small chunks. Bandwidth: about 60 %
    was measured with TensorRT-LLM on H100 (Databricks, LLM Inference Performance Engineering: Best Practices, 2023).
    """

    arithmetic: float = 0.6
    bandwidth: float = 0.6

    def __post_init__(self) -> None:
        for name in ("arithmetic", "bandwidth"):
            if not 0 < getattr(self, name) <= 1:
                raise InputError(f"is a share above 0 and up to 1, not {getattr(self, name):g}", where=f"--{name}")


@dataclass(frozen=True)
class Roofline:
    reads: tuple[float, ...]
    """Seconds to read the weights, by the bit length of the step's tokens: a mixture reads those that are chosen."""
    cached: float
    """Seconds a token looked back at."""
    token: float
    """Seconds of the multiplications of a token, without the head's."""
    head: float
    looked: float
    """Seconds of the multiplications of attention, for a token looked back at."""
    moved: float
    """Seconds that all-reduces take for a token."""
    fixed: float
    """Seconds of a step without any."""

    @property
    def spread(self) -> Sequence[float]:
        return (1.0,)

    def seconds(self, shape: Shape) -> float:
        decoding, context, prompt, attended = shape
        tokens = decoding + prompt
        reading = self.reads[min(tokens.bit_length(), len(self.reads) - 1)] + context * self.cached
        multiplying = tokens * self.token + (decoding + bool(prompt)) * self.head + (context + attended) * self.looked
        return max(reading, multiplying) + tokens * self.moved + self.fixed


def gpu_hardware(plan: Plan, info: ModelInfo, gpu: Gpu, tensor: int, efficiency: Efficiency) -> Hardware | None:
    """An engine over `tensor` GPUs; None where the model does not fit. Raises UnsupportedError for a pipeline."""
    if plan.engine.parallel.pipeline > 1:
        fix = "Set it to 1: `tensor` is tried by itself."
        raise UnsupportedError("stages of a pipeline are not simulated", where="engine.parallel.pipeline", fix=fix)
    alone = plan.serving.model_copy(update={"disaggregated": None})  # whose workers have other splits of their own
    on = placed(plan.model_copy(update={"serving": alone}), gpu, tensor)
    memory = gpu_memory(on, info, gpu.memory_bytes)
    size = plan.engine.kv_cache.tokens_per_block
    cache = cache_of(info, short_dtype(gpu_kv_dtype(on, info)), size, split_of(on))
    num_blocks = int(max(memory.kv_limit_bytes, 0) // cache.block_bytes)
    if num_blocks * size < plan.engine.max_seq_len:
        return None
    engine = plan.engine
    config = EngineConfig(
        max_batch_size=engine.max_batch_size,
        max_num_tokens=engine.max_num_tokens,
        max_seq_len=engine.max_seq_len,
        max_queue_size=engine.max_queue_size,
        chunked_prefill=engine.chunked_prefill,
        reuse=engine.kv_cache.reuse,
    )
    token_bytes = cache.bytes_per_token * tensor
    return Hardware(config, num_blocks, size, roofline(plan, info, gpu, tensor, token_bytes, efficiency), token_bytes)


def roofline(
    plan: Plan, info: ModelInfo, gpu: Gpu, tensor: int, kv_token_bytes: float, efficiency: Efficiency
) -> Roofline:
    machine = machine_of(gpu, format_of(plan, info), tensor)
    bandwidth = tensor * machine.bandwidth_bytes_s * efficiency.bandwidth
    flops = tensor * machine.flops * efficiency.arithmetic
    storage, head = storage_in(plan, info), info.vocab_size * info.hidden_size
    reads = tuple(read_weight_bytes(info, storage, max(1, 1 << bits >> 1)) / bandwidth for bits in range(18))
    link = gpu.nvlink_bytes_s / 2 if gpu.nvlink_bytes_s else _PCIE_BYTES_S
    reduces = 2 * info.num_layers if tensor > 1 else 0
    sent = 2 * (tensor - 1) / tensor * info.hidden_size * _ACTIVATION_BYTES
    return Roofline(
        reads=reads,
        cached=kv_token_bytes / bandwidth,
        token=2.0 * (active_parameters(info) - head) / flops,
        head=2.0 * head / flops,
        looked=4.0 * info.num_layers * info.num_attention_heads * info.head_dim / flops,
        moved=reduces * sent / (link * efficiency.bandwidth),
        fixed=reduces * _ALL_REDUCE_SECONDS,
    )
