"""Rules about the engines that a model repository names: their own config.json, and what lies beside them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from conch_build.compile.tensorrt.engine_config import EngineConfig
from conch_build.files import read_json
from conch_build.manifest import ENGINE_FILE, GpuEngineManifest
from conch_build.pack.configs import CONFIG
from conch_build.preflight.registry import Violation, rule
from conch_build.preflight.repository import Repository, parameter

_LORA_FILES = ("model.lora_weights.npy", "model.lora_config.npy")


@rule(
    "repository.world-size",
    decided="repository",
    references=(
        "NVIDIA/TensorRT-LLM#1047",
        "NVIDIA/TensorRT-LLM#2813",
        "triton-inference-server/tensorrtllm_backend#577",
    ),
)
def _every_rank_is_there(repository: Repository) -> Iterator[Violation]:
    """An engine has a file for each GPU of tensor times pipeline, and the server a process for each: another number of
    either, or of `gpu_device_ids`, and it hangs or ends while it loads."""
    for name, engine in repository.engines.items():
        size = int(engine.get("pretrained_config", "mapping", "world_size") or 1)
        if len(engine.ranks) != size:
            yield Violation(
                str(engine.folder), f"it is for {size} GPUs and has {len(engine.ranks)} rank files", "Build it again."
            )
        groups = parameter(repository.configs[name], "gpu_device_ids")
        for group in filter(None, groups.split(";")):
            if len(group.split(",")) != size:
                yield Violation(
                    f"{name}/{CONFIG}", f"`gpu_device_ids` has the GPUs {group}; the engine needs {size}", "Correct it."
                )


@rule(
    "repository.engine-version",
    decided="repository",
    references=("triton-inference-server/tensorrtllm_backend#190", "NVIDIA/TensorRT-LLM#660"),
)
def _engine_is_of_its_release(repository: Repository) -> Iterator[Violation]:
    """The engine's own config.json names the release that built it, and only that release loads it. Conch writes beside
    it what it was to be built with, for which GPU and in which image."""
    for engine in repository.engines.values():
        record = engine.folder.parent / ENGINE_FILE
        if not record.is_file():
            continue
        wanted = GpuEngineManifest.load(record.parent)
        if wanted.tensorrt_llm != engine.version:
            yield Violation(
                str(engine.folder),
                f"TensorRT-LLM {engine.version} built it; it is served by {wanted.tensorrt_llm} ({wanted.container})",
                "Build it again in the image that serves it.",
            )


@rule(
    "repository.paged-context",
    decided="repository",
    references=(
        "triton-inference-server/tensorrtllm_backend#271",
        "triton-inference-server/tensorrtllm_backend#323",
        "triton-inference-server/tensorrtllm_backend#679",
        "NVIDIA/TensorRT-LLM#2166",
    ),
)
def _engine_can_reuse(repository: Repository) -> Iterator[Violation]:
    """Reuse of KV blocks and prompts in chunks need an engine that was built with paged context attention. Without it
    both are off, and nothing says so."""
    for name, engine in repository.engines.items():
        config = repository.configs[name]
        keys = [key for key in ("enable_kv_cache_reuse", "enable_chunked_context") if parameter(config, key) == "true"]
        if keys and not engine.get("build_config", "plugin_config", "use_paged_context_fmha"):
            yield Violation(
                f"{name}/{CONFIG}",
                f"`{'` and `'.join(keys)}` need an engine with `use_paged_context_fmha`, which this is not",
                "Build the engine with it; an int8 KV cache excludes it.",
            )


@rule(
    "repository.rope",
    severity="warning",
    decided="repository",
    references=("triton-inference-server/tensorrtllm_backend#624",),
)
def _engine_reaches_as_far_as_the_model(repository: Repository) -> Iterator[Violation]:
    """Conversion lost the model's rope scaling, or the engine is longer than the model's positions: short prompts are
    answered well and long ones with nonsense, often beyond 4096 tokens."""
    for engine in repository.engines.values():
        path = engine.folder.parent / "tokenizer" / "config.json"
        if not path.is_file():
            continue
        config = read_json(path)
        scaling, own = config.get("rope_scaling"), engine.get("pretrained_config", "rotary_scaling")
        if scaling and not own:
            yield Violation(str(engine.folder), "the model's rope scaling is not in it", "Convert it again.", "warning")
        positions, longest = config.get("max_position_embeddings"), engine.get("build_config", "max_seq_len")
        if isinstance(positions, int) and isinstance(longest, int) and longest > positions:
            yield Violation(
                str(engine.folder),
                f"its `max_seq_len` {longest} is beyond the model's {positions} positions",
                f"Build it with at most {positions}.",
                "warning",
            )


@rule(
    "repository.lora-prefetch",
    decided="repository",
    references=(
        "triton-inference-server/tensorrtllm_backend#641",
        "triton-inference-server/tensorrtllm_backend#791",
        "triton-inference-server/tensorrtllm_backend#417",
        "triton-inference-server/tensorrtllm_backend#406",
    ),
)
def _adapters_can_be_prefetched(repository: Repository) -> Iterator[Violation]:
    """Adapters are fetched before the first request from folders named by their ids, numbers, each with its weights and
    its layout. Others are passed over, and requests for them fail as not found in the cache."""
    for name, config in repository.configs.items():
        path = parameter(config, "lora_prefetch_dir")
        for folder in sorted(Path(path).iterdir()) if path and Path(path).is_dir() else ():
            if not folder.name.isdigit():
                yield Violation(f"{name}: {folder}", "its name is no number, so it is no adapter's id", "Rename it.")
            elif missing := [file for file in _LORA_FILES if not (folder / file).is_file()]:
                yield Violation(f"{name}: {folder}", f"it lacks {' and '.join(missing)}", "Convert the adapter again.")
            elif differing := _other_type(folder / _LORA_FILES[0], repository.engines.get(name)):
                yield Violation(f"{name}: {folder}", differing, "Convert it with `--storage-type` of the engine's.")


@rule(
    "repository.draft",
    decided="repository",
    references=(
        "triton-inference-server/tensorrtllm_backend#473",
        "triton-inference-server/tensorrtllm_backend#678",
        "NVIDIA/TensorRT-LLM#2789",
    ),
)
def _draft_and_target_fit(repository: Repository) -> Iterator[Violation]:
    """A draft engine must have its target's vocabulary, the target must have been built to verify guesses, and both
    must keep their KV blocks: else lengths are refused, buffers have other shapes, or hardly a guess is right."""
    target, draft = (repository.engines.get(name) for name in ("tensorrt_llm", "tensorrt_llm_draft"))
    if target is None or draft is None:
        return
    sizes = [engine.get("pretrained_config", "vocab_size") for engine in (target, draft)]
    if sizes[0] != sizes[1]:
        yield Violation(
            str(draft.folder), f"its vocabulary is {sizes[1]}, the target's {sizes[0]}", "Use a draft of its family."
        )
    if not target.get("build_config", "max_draft_len"):
        yield Violation(
            str(target.folder),
            "it was not built to verify guesses: its `max_draft_len` is 0",
            "Build it with `engine.speculation.method: draft`.",
        )
    for name in ("tensorrt_llm", "tensorrt_llm_draft"):
        if parameter(repository.configs[name], "enable_kv_cache_reuse") != "true":
            yield Violation(f"{name}/{CONFIG}", "it does not reuse KV blocks", "Set `enable_kv_cache_reuse` to true.")


def _other_type(weights: Path, engine: EngineConfig | None) -> str | None:
    """Of adapters in a type that NumPy has a name for; bf16 has none."""
    import numpy as np

    wanted = engine.get("build_config", "plugin_config", "lora_plugin") if engine else None
    stored = np.load(weights, mmap_mode="r").dtype.name
    if wanted in ("float16", "float32") and stored in ("float16", "float32") and stored != wanted:
        return f"its weights are {stored}, and the engine's LoRA plugin takes {wanted}"
    return None
