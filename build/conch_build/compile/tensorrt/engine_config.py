"""An engine directory read back: whether it is what was asked for, and whether this release can serve it.

`config.json` of TensorRT-LLM names the release, the checkpoint (`pretrained_config`) and the build (`build_config`).
Names and values are compared, weights are not read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conch_build.errors import CompileError, ConchError
from conch_build.files import read_json
from conch_build.manifest import GpuEngineManifest

QUANT_ALGOS: dict[str, str | None] = {
    "none": None,
    "int8": "W8A16",
    "int8_sq": "W8A8_SQ_PER_CHANNEL",
    "int4_awq": "W4A16_AWQ",
    "fp8": "FP8",
    "nvfp4": "NVFP4",
    "w4a8_awq": "W4A8_AWQ",
}
"""Format of a plan -> TensorRT-LLM's name for it."""

_KV_ALGOS = {"fp8": "FP8", "int8": "INT8", "nvfp4": "NVFP4"}

_MODES: dict[str, tuple[int, str]] = {
    "none": (1, "none"),
    "draft": (2, "draft_tokens_external"),
    "medusa": (4, "medusa"),
    "lookahead": (8, "lookahead_decoding"),
}
"""Speculation of a plan -> as a number and as a name; engines write the number."""


@dataclass(frozen=True)
class EngineConfig:
    """`config.json` of an engine directory, and which rank files lie beside it."""

    folder: Path
    data: Mapping[str, Any]
    ranks: tuple[int, ...]

    def get(self, *keys: str) -> Any:
        """A value by its path; None where there is none."""
        value: Any = self.data
        for key in keys:
            value = value.get(key) if isinstance(value, Mapping) else None
        return value

    @property
    def version(self) -> str:
        return str(self.get("version"))


def read_engine(folder: Path) -> EngineConfig:
    """Raises CompileError when the folder holds no engine."""
    try:
        data = read_json(folder / "config.json")
    except ConchError as error:
        raise _wrong(folder, [error.what]) from None
    if not {"pretrained_config", "build_config"} <= data.keys():
        raise _wrong(folder, ["its config.json is no engine's: it has no `pretrained_config` and `build_config`"])
    ranks = (path.stem.removeprefix("rank") for path in folder.glob("rank*.engine"))
    return EngineConfig(folder, data, tuple(sorted(int(rank) for rank in ranks if rank.isdigit())))


def check_engine(folder: Path, wanted: GpuEngineManifest, *, release: str | None = None) -> None:
    """Raises CompileError with every difference between an engine and what it should be.

    `release`: TensorRT-LLM of the image that is to serve it; None: the one it was to be built with.
    """
    if problems := list(differences(read_engine(folder), wanted, release or wanted.tensorrt_llm)):
        raise _wrong(folder, problems)


def differences(engine: EngineConfig, wanted: GpuEngineManifest, release: str) -> Iterator[str]:
    """One sentence each: what the engine has, and what it should."""
    if engine.version != release:
        yield f"it was built by TensorRT-LLM {engine.version}, and only that release reads it; this is {release}"
    expected = tuple(range(wanted.parallel.world_size))
    if engine.ranks != expected:
        found = ", ".join(f"rank{rank}.engine" for rank in engine.ranks) or "none"
        yield f"it should have {len(expected)} rank files, one a GPU; there is {found}"
    for what, has, should in _pairs(engine, wanted):
        if has != should:
            yield f"{what} is {_told(has)} instead of {_told(should)}"


def _pairs(engine: EngineConfig, wanted: GpuEngineManifest) -> Iterator[tuple[str, Any, Any]]:
    """What it is, what the engine has, what it should have."""
    limits, parallel = wanted.limits, wanted.parallel
    for key, should in (("tp_size", parallel.tensor), ("pp_size", parallel.pipeline)):
        yield key, engine.get("pretrained_config", "mapping", key), should
    if parallel.expert > 1:
        yield "moe_ep_size", engine.get("pretrained_config", "mapping", "moe_ep_size"), parallel.expert
    yield "dtype", engine.get("pretrained_config", "dtype"), wanted.dtype
    yield "quant_algo", engine.get("pretrained_config", "quantization", "quant_algo"), _quant_algo(wanted)
    if wanted.quantization.group_size is not None:
        group = engine.get("pretrained_config", "quantization", "group_size")
        yield "group_size", group, wanted.quantization.group_size
    cache = engine.get("pretrained_config", "quantization", "kv_cache_quant_algo")
    yield "kv_cache_quant_algo", cache, _KV_ALGOS.get(wanted.kv_cache.dtype)
    vocabulary = engine.get("pretrained_config", "vocab_size") or 0
    padded = _padded(wanted)
    yield "vocab_size", vocabulary, vocabulary if wanted.vocab_size <= vocabulary <= padded else wanted.vocab_size
    # What is verified in a step is added to the longest sequence, and has to fit a step of all requests.
    guesses = wanted.speculation.max_draft_len
    step = limits.max_batch_size * (guesses + 1) if guesses else 0
    yield "max_batch_size", engine.get("build_config", "max_batch_size"), limits.max_batch_size
    yield "max_num_tokens", engine.get("build_config", "max_num_tokens"), max(limits.max_num_tokens, step)
    yield "max_seq_len", engine.get("build_config", "max_seq_len"), limits.max_seq_len + guesses
    yield "kv_cache_type", str(engine.get("build_config", "kv_cache_type")).rpartition(".")[2].lower(), "paged"
    yield from _plugins(engine, wanted)
    yield from _speculation(engine, wanted)
    yield from _lora(engine, wanted)


def _padded(wanted: GpuEngineManifest) -> int:
    """The largest vocabulary: ModelOpt pads it to a multiple of 64 for AWQ, and it must split over GPUs."""
    size = wanted.vocab_size
    for step in (64 if wanted.quantization.format in ("int4_awq", "w4a8_awq") else 1, wanted.parallel.tensor):
        size = -(-size // step) * step
    return size


def _plugins(engine: EngineConfig, wanted: GpuEngineManifest) -> Iterator[tuple[str, Any, Any]]:
    def plugin(name: str) -> Any:
        return engine.get("build_config", "plugin_config", name)

    yield "remove_input_padding", plugin("remove_input_padding"), True
    yield "tokens_per_block", plugin("tokens_per_block"), wanted.kv_cache.tokens_per_block
    if wanted.limits.chunked_prefill or wanted.kv_cache.reuse or wanted.speculation.method == "draft":
        yield "use_paged_context_fmha", plugin("use_paged_context_fmha"), True


def _speculation(engine: EngineConfig, wanted: GpuEngineManifest) -> Iterator[tuple[str, Any, Any]]:
    method = wanted.speculation.method
    name = _MODES[method][1]
    has = engine.get("build_config", "speculative_decoding_mode")
    known = {alias: shown for value, shown in _MODES.values() for alias in (value, shown, shown.upper())}
    yield "speculative_decoding_mode", known.get("none" if has is None else has, has), name
    if method != "none":
        yield "max_draft_len", engine.get("build_config", "max_draft_len"), wanted.speculation.max_draft_len


def _lora(engine: EngineConfig, wanted: GpuEngineManifest) -> Iterator[tuple[str, Any, Any]]:
    plugin = engine.get("build_config", "plugin_config", "lora_plugin")
    if wanted.lora is None:
        yield "lora_plugin", plugin or None, None
        return
    yield "lora_plugin", plugin, wanted.dtype
    yield "max_lora_rank", engine.get("build_config", "lora_config", "max_lora_rank"), wanted.lora.max_rank
    modules = engine.get("build_config", "lora_config", "lora_target_modules")
    yield "lora_target_modules", sorted(modules or []), sorted(wanted.lora.target_modules)


def _quant_algo(wanted: GpuEngineManifest) -> str | None:
    """A format that is no plan's is that of a checkpoint that came quantized, in TensorRT-LLM's own words."""
    return QUANT_ALGOS.get(wanted.quantization.format, wanted.quantization.format)


def _told(value: Any) -> str:
    return ", ".join(map(str, value)) or "none" if isinstance(value, list) else "none" if value is None else str(value)


def _wrong(folder: Path, problems: list[str]) -> CompileError:
    return CompileError(
        f"is not the engine that was asked for: {'; '.join(problems)}",
        where=str(folder),
        fix="Build it again with `conch build --force`.",
    )
