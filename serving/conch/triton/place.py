"""What a server is bound to on its machine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """Empty: it has the machine to itself."""

    cpus: tuple[int, ...] = ()
    """Numbers of logical CPUs."""
    gpus: tuple[int, ...] = ()
    """Numbers of GPUs, as CUDA_VISIBLE_DEVICES has them."""


EVERYWHERE = Place()
