"""Which GPU, and how many, for a workload: every card of the table, with the fewest that hold it.

By memory: weights and what else a GPU needs, then the keys and values of all requests; by time, where a rate is given:
the fewest replicas that keep up, if each ran at the limits of its card. A card that is too small with eight together is
left out. Knows no prices.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from conch_build.compile.precision import gpu_kv_dtype
from conch_build.errors import PlanError
from conch_build.gpu.cards import GPUS, Gpu
from conch_build.gpu.memory import gpu_memory, split_of
from conch_build.model_info import ModelInfo
from conch_build.plan import Parallel, Plan, Target
from conch_build.preflight.precision import KERNELS
from conch_build.queueing import replicas_for
from conch_build.size.cache import cache_of, pages_of, short_dtype
from conch_build.size.report import Workload, format_of, storage_in
from conch_build.size.roofline import limits, machine_of

TENSOR_SIZES = (1, 2, 4, 8)
_WAIT_SECONDS = 1.0


@dataclass(frozen=True)
class Choice:
    gpu: str
    label: str
    tensor: int
    replicas: int
    requests_each: int
    """That a replica holds at once."""
    memory_bytes: int
    """Of all GPUs together."""
    prefill_seconds: float
    step_seconds: float
    decode_tokens_s: float
    """Of all replicas; all three are limits, not forecasts."""

    @property
    def gpus(self) -> int:
        return self.tensor * self.replicas


def choices(plan: Plan, info: ModelInfo, work: Workload, rate: float | None = None) -> list[Choice]:
    """The least memory first. `rate`: requests a second."""
    found = [choice for gpu in GPUS.values() if (choice := _choice(plan, info, gpu, work, rate))]
    return sorted(found, key=lambda choice: (choice.memory_bytes, choice.gpus))


def placed(plan: Plan, gpu: Gpu, tensor: int) -> Plan:
    """The plan on other GPUs."""
    engine = plan.engine.model_copy(update={"parallel": Parallel(tensor=tensor)})
    return plan.model_copy(update={"target": Target(gpu=gpu.name), "engine": engine})


def _choice(plan: Plan, info: ModelInfo, gpu: Gpu, work: Workload, rate: float | None) -> Choice | None:
    kernels = KERNELS[plan.engine.backend].get(format_of(plan, info))
    if kernels is not None and not kernels.run_on(gpu.sm):
        return None
    fitting = list(_fitting(plan, info, gpu, work))
    if not fitting:
        return None
    tensor, held = min(fitting, key=lambda fit: (fit[0] * -(-work.requests // fit[1]), fit[0]))
    replicas = -(-work.requests // held)
    on = placed(plan, gpu, tensor)
    cache = cache_of(info, short_dtype(gpu_kv_dtype(on, info)), plan.engine.kv_cache.tokens_per_block, split_of(on))

    def bounds(count: int) -> tuple[float, float, float]:
        batch = min(held, -(-work.requests // count))
        machine = machine_of(gpu, format_of(plan, info), tensor)
        token_bytes = cache.bytes_per_token * tensor
        found = limits(
            info, storage_in(plan, info), machine, token_bytes, prompt=work.prompt, context=work.tokens, batch=batch
        )
        return found.prefill_seconds, found.step_seconds, count * found.decode_tokens_s

    if rate is not None:
        # A decoding request waits for the prompts of the others, which a replica reads one by one.
        prefill, step, _ = bounds(replicas)
        answer = work.tokens - work.prompt
        batch = min(held, work.requests)
        service = batch * prefill + answer * step
        replicas = max(replicas, replicas_for(rate, service, batch, wait_seconds=_WAIT_SECONDS))
    prefill, step, together = bounds(replicas)
    return Choice(
        gpu=gpu.name,
        label=gpu.label,
        tensor=tensor,
        replicas=replicas,
        requests_each=held,
        memory_bytes=tensor * replicas * gpu.memory_bytes,
        prefill_seconds=prefill,
        step_seconds=step,
        decode_tokens_s=together,
    )


def _fitting(plan: Plan, info: ModelInfo, gpu: Gpu, work: Workload) -> Iterator[tuple[int, int]]:
    """GPUs together, and requests that they hold."""
    for tensor in TENSOR_SIZES:
        uneven = info.num_kv_heads % tensor and tensor % info.num_kv_heads and info.latent is None
        if info.num_attention_heads % tensor or uneven or info.intermediate_size % tensor:
            continue
        on = placed(plan, gpu, tensor)
        try:
            memory = gpu_memory(on, info, gpu.memory_bytes)
        except PlanError:
            continue
        cache = cache_of(info, short_dtype(gpu_kv_dtype(on, info)), plan.engine.kv_cache.tokens_per_block, split_of(on))
        held = cache.requests_in(memory.kv_limit_bytes, work.tokens, pages_of(plan, info))
        if held:
            yield tensor, held
