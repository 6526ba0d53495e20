"""What advice is asked for: a model, the machine, the workload, and what matters most."""

from __future__ import annotations

import typing
from dataclasses import dataclass
from typing import Literal

from conch_build.checkpoint import Checkpoint
from conch_build.errors import InputError
from conch_build.gpu.cards import Gpu
from conch_build.machine import memory_bytes
from conch_build.model_info import ModelInfo
from conch_build.preflight.precision import KERNELS

Goal = Literal["latency", "throughput", "balanced", "memory", "cost", "accuracy"]
Use = Literal["chat", "rag", "code", "batch"]
GOALS: tuple[str, ...] = typing.get_args(Goal)
USES: tuple[str, ...] = typing.get_args(Use)

_SMALL = 3_000_000_000


@dataclass(frozen=True)
class Situation:
    checkpoint: Checkpoint
    goal: Goal = "balanced"
    use: Use = "chat"
    gpu: Gpu | None = None
    """None: the CPU engine on this machine."""
    gpus: int = 1
    tokens: int = 4096
    """Of a request at most, prompt and answer together."""
    requests: int = 32
    """At once."""

    def __post_init__(self) -> None:
        positions = self.info.max_position_embeddings
        if not 2 <= self.tokens <= positions:
            what = f"a request has from 2 to {positions:,} tokens with this model, not {self.tokens:,}"
            raise InputError(what, where="--tokens")
        for name, number in (("--gpus", self.gpus), ("--requests", self.requests)):
            if not 1 <= number <= 4096:
                raise InputError(f"must be from 1 to 4,096, not {number:,}", where=name)

    @property
    def info(self) -> ModelInfo:
        return self.checkpoint.info

    @property
    def on_cpu(self) -> bool:
        return self.gpu is None

    @property
    def small(self) -> bool:
        return self.info.parameters < _SMALL

    @property
    def consumer_gpu(self) -> bool:
        return self.gpu is not None and self.gpu.name.startswith("rtx")

    @property
    def quantized(self) -> bool:
        return self.info.quantization is not None

    @property
    def machine_bytes(self) -> int:
        return memory_bytes()

    def has_kernels(self, form: str) -> bool:
        """Whether the GPU multiplies weights in that format with the LLM API."""
        kernels = KERNELS["pytorch"].get(form)
        return self.gpu is not None and kernels is not None and kernels.run_on(self.gpu.sm)

    def fits_in_16_bits(self) -> bool:
        """Whether 16-bit weights leave half of the GPUs' memory to requests."""
        return self.gpu is not None and 4 * self.info.parameters <= self.gpus * self.gpu.memory_bytes
