"""An artifact's folder becomes an engine: its runner, its draft's runner, its memory. Knows nothing of requests."""

from __future__ import annotations

from pathlib import Path

from conch.engine.adapters import Adapters
from conch.engine.config import EngineConfig
from conch.engine.core import Engine
from conch.engine.drafters import ModelDrafter, NgramDrafter
from conch.engine.guidance import Guidance
from conch.engine.runner import OpenVINORunner
from conch.engine.speculation import Drafter, Speculation
from conch_build.adapter_registry import AdapterRegistry
from conch_build.machine import free_memory_bytes
from conch_build.manifest import DRAFT_DIR, EngineManifest

TOKENIZER_DIR = "tokenizer"


def load_engine(folder: Path, registry: AdapterRegistry | None = None) -> Engine:
    """The engine in `folder`, ready to work with the adapters of `registry`. Raises StoreError or SetupError."""
    manifest = EngineManifest.load(folder)
    speculation = manifest.speculation
    draft = EngineManifest.load(folder / DRAFT_DIR) if speculation.method == "draft" else None
    num_blocks = manifest.num_blocks(free_memory_bytes(), draft)
    drafter: Drafter | None = None
    if draft is not None:
        drafter = ModelDrafter(OpenVINORunner(folder / DRAFT_DIR, draft, num_blocks))
    elif speculation.method == "ngram":
        drafter = NgramDrafter(speculation.max_matching_ngram_size)
    runner = OpenVINORunner(folder, manifest, num_blocks, registry)
    return Engine(
        runner,
        EngineConfig.from_manifest(manifest),
        Speculation(drafter, speculation.max_draft_len) if drafter else None,
        Adapters(registry, runner.lora) if registry and runner.lora else None,
        Guidance(folder / TOKENIZER_DIR, manifest.vocab_size, frozenset(manifest.end_ids)),
    )
