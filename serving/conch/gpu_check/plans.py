"""The plans of the day: one model on each backend, small enough for every GPU."""

from __future__ import annotations

from typing import Any

import yaml

from conch.gpu_check.machine import Means
from conch_build.errors import InputError, PlanError
from conch_build.gpu.cards import GPUS, find_gpu
from conch_build.gpu.installed import InstalledGpu

_NO_PORT = {"http_port": 0, "grpc_port": 0, "metrics_port": 0}
_PORTS = {"http_port": 18000, "grpc_port": 18001, "metrics_port": 18002}
_GATEWAY_PORT = 18080


def cpu_plan(model: str) -> str:
    """The yardstick: unquantized weights, exact arithmetic."""
    engine = {"backend": "openvino", "precision": "f32", "kv_cache": {"size": "256MiB"}}
    return _plan("gpu-check-cpu", model, "none", engine, "host")


def gpu_plan(model: str, backend: str, quantization: str, gpu: InstalledGpu, means: Means) -> str:
    """Half of the GPU's memory for the cache: others may use it, too."""
    engine = {"backend": backend, "kv_cache": {"free_memory_fraction": 0.5}}
    text = _plan(f"gpu-check-{backend}-{quantization}", model, quantization, engine, means)
    return text + yaml.safe_dump({"target": {"gpu": key_of(gpu)}})


def key_of(gpu: InstalledGpu) -> str:
    """The plan's name of an installed GPU: by its name, else of its architecture the one nearest in memory.

    Raises InputError for an architecture that no plan can name.
    """
    try:
        return find_gpu(gpu.name).name
    except PlanError:
        alike = [known for known in GPUS.values() if known.sm == gpu.sm]
    if not alike:
        raise InputError(f"no plan can name this GPU yet: {gpu.name} (sm{gpu.sm})", where="target.gpu")
    return min(alike, key=lambda known: abs(known.memory_bytes - gpu.memory_bytes)).name


def _plan(name: str, model: str, quantization: str, engine: dict[str, Any], means: Means) -> str:
    """Containers need ports that are known before they start."""
    here = means == "host"
    plan = {
        "name": name,
        "model": {"checkpoint": model},
        "quantization": {"format": quantization},
        "engine": {"max_batch_size": 16, "max_num_tokens": 2048, "max_seq_len": 2048, **engine},
        "serving": {
            "triton": _NO_PORT if here else _PORTS,
            "gateway": {"port": 0 if here else _GATEWAY_PORT},
        },
    }
    return yaml.safe_dump(plan, sort_keys=False)
