"""An engine folder becomes a running LLM: the only module that imports `tensorrt_llm`, and only when it is called.

engine.json      what was built
llm_args.yaml    the LLM API's arguments
checkpoint/      the weights
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml

from conch.backend.llmapi.adapters import LlmAdapters, Lora
from conch.backend.llmapi.engine import LlmApiEngine
from conch.backend.llmapi.sampler import sampler_of
from conch.backend.llmapi.sampling import Model
from conch.engine.config import EngineConfig
from conch_build.adapter_registry import AdapterRegistry
from conch_build.errors import SetupError
from conch_build.manifest import GpuEngineManifest

LLM_ARGS_FILE = "llm_args.yaml"
CHECKPOINT_DIR = "checkpoint"
_STATS_TIMEOUT_S = 0.5


def load_engine(folder: Path, registry: AdapterRegistry | None = None) -> LlmApiEngine:
    """Load the weights; ready to work when this returns. Raises StoreError, SetupError."""
    manifest = GpuEngineManifest.load(folder)
    args = yaml.safe_load((folder / LLM_ARGS_FILE).read_text(encoding="utf-8"))
    api = TensorRtLlm(folder / CHECKPOINT_DIR, args)
    check_release(manifest.tensorrt_llm, api.release)
    model = Model(
        sampler=sampler_of(args, api.release),
        vocab_size=manifest.vocab_size,
        end_ids=frozenset(manifest.end_ids),
        pad_id=manifest.pad_id,
        guides=args.get("guided_decoding_backend"),
    )
    return LlmApiEngine(
        api,
        engine_config(manifest),
        model,
        LlmAdapters(registry),
        tokens_per_block=manifest.kv_cache.tokens_per_block,
        speculates="speculative_config" in args,
    )


def engine_config(manifest: GpuEngineManifest) -> EngineConfig:
    """The limits that requests are checked against."""
    limits = manifest.limits
    return EngineConfig(
        max_batch_size=limits.max_batch_size,
        max_num_tokens=limits.max_num_tokens,
        max_seq_len=limits.max_seq_len,
        max_queue_size=limits.max_queue_size,
        chunked_prefill=limits.chunked_prefill,
        reuse=manifest.kv_cache.reuse,
        end_ids=frozenset(manifest.end_ids),
    )


def devices_of(gpu_device_ids: str, instance: str) -> str | None:
    """GPUs of one instance of the model, as CUDA_VISIBLE_DEVICES has them; None leaves them all.

    `gpu_device_ids` has the groups of all instances, `0,1;2,3`; `instance` is Triton's name of this one, which ends
    with its number. Raises SetupError when there is no group for it.
    """
    if not gpu_device_ids:
        return None
    groups = gpu_device_ids.split(";")
    number = int(instance.rpartition("_")[2])
    if number >= len(groups):
        raise SetupError(
            f"instance {number} has no GPUs in `{gpu_device_ids}`",
            where="gpu_device_ids",
            fix="Give as many groups as `instance_group` has instances.",
        )
    return groups[number]


def check_release(built: str, installed: str) -> None:
    """Raises SetupError when another release than the one that it was built for would serve it."""
    if built.split(".")[:2] != installed.split(".")[:2]:
        raise SetupError(
            f"was built for TensorRT-LLM {built}, and this is {installed}",
            where="engine",
            fix="Serve it in its own image, or set `target.tensorrt_llm` and build again.",
        )


class TensorRtLlm:
    """`tensorrt_llm.LLM` as `LlmApi` has it."""

    def __init__(self, checkpoint: Path, args: Mapping[str, Any]) -> None:
        """Blocks while the weights are loaded. Raises SetupError without the package."""
        package = _package()
        self.release: str = package.__version__
        self._llm = package.LLM(model=str(checkpoint), tokenizer=str(checkpoint), **_typed(args), **_session())

    def generate(
        self, prompt: list[int], sampling: Mapping[str, Any], guide: Mapping[str, Any] | None, lora: Lora | None
    ) -> Any:
        import torch
        from tensorrt_llm import SamplingParams
        from tensorrt_llm.executor.request import LoRARequest
        from tensorrt_llm.sampling_params import GuidedDecodingParams

        kwargs = dict(sampling)
        if "embedding_bias" in kwargs:
            kwargs["embedding_bias"] = torch.from_numpy(kwargs["embedding_bias"])
        if guide is not None:
            kwargs["guided_decoding"] = GuidedDecodingParams(**guide)
        asked = LoRARequest(lora.name, lora.number, str(lora.path)) if lora is not None else None
        return self._llm.generate_async(prompt, SamplingParams(**kwargs), lora_request=asked, streaming=True)

    async def stats(self) -> AsyncIterator[Mapping[str, Any]]:
        async for record in self._llm.get_stats_async(timeout=_STATS_TIMEOUT_S):
            yield record

    def alive(self) -> bool:
        executor = getattr(self._llm, "_executor", None)
        return executor is not None and not executor.is_shutdown()

    def shutdown(self) -> None:
        self._llm.shutdown()


def _package() -> Any:
    try:
        import tensorrt_llm
    except ImportError as error:
        raise SetupError(
            f"cannot be imported: {error}",
            where="tensorrt_llm",
            fix="Serve this repository in the image that it was built for.",
        ) from None
    return tensorrt_llm


def _typed(args: Mapping[str, Any]) -> dict[str, Any]:
    """The YAML's mappings as `trtllm-serve` gives them to the LLM: 1.2 takes no `speculative_config` that is one."""
    from tensorrt_llm.llmapi import llm_utils

    convert = getattr(llm_utils, "update_llm_args_with_extra_dict", None)
    own = deepcopy(dict(args))  # which it changes
    return own if convert is None else dict(convert({}, own))


def _session() -> dict[str, Any]:
    """The other ranks, where MPI has started them all; else the LLM API starts its own."""
    from tensorrt_llm._utils import global_mpi_size

    if global_mpi_size() == 1:
        return {}
    from mpi4py.MPI import COMM_WORLD
    from tensorrt_llm.llmapi import MpiCommSession

    return {"_mpi_session": MpiCommSession(comm=COMM_WORLD, n_workers=COMM_WORLD.Get_size())}


def serve_as_rank() -> None:
    """What the ranks behind the first one do: work for it until it ends."""
    from mpi4py.futures import MPICommExecutor
    from mpi4py.MPI import COMM_WORLD

    with MPICommExecutor(COMM_WORLD):
        pass


def is_leader() -> bool:
    """Whether this process is the one that clients talk to. Raises SetupError without the package."""
    _package()
    from tensorrt_llm._utils import global_mpi_rank

    return bool(global_mpi_rank() == 0)


def limit_devices(gpu_device_ids: str, instance: str) -> None:
    """Let this process see the GPUs of its instance alone; before anything touches CUDA."""
    if (devices := devices_of(gpu_device_ids, instance)) is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = devices
