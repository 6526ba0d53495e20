"""What Triton loads as `tensorrt_llm` for the backend `pytorch`: the generation model with another engine in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from conch.backend.arrays import parameters
from conch.backend.generation import GenerationModel


class LlmApiModel(GenerationModel):
    """Of several MPI ranks the first is the model; the others work for it and answer nobody."""

    @staticmethod
    def load_engine(folder: Path, model: Path) -> Any:
        from conch.backend.llmapi.loading import load_engine
        from conch_build.adapter_registry import AdapterRegistry

        return load_engine(folder, AdapterRegistry.load(model))

    def initialize(self, args: dict[str, str]) -> None:
        from conch.backend.llmapi.loading import is_leader, limit_devices, serve_as_rank

        limit_devices(parameters(args).get("gpu_device_ids", ""), args["model_instance_name"])
        self._leads = is_leader()
        if self._leads:
            super().initialize(args)
        else:
            serve_as_rank()

    def finalize(self) -> None:
        if self._leads:
            super().finalize()
