"""What an artifact says of itself: `manifest.json` of every artifact, and `engine.json` of an engine.

Plain frozen records. Knows nothing of how artifacts are made or where they are kept.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from conch_build.errors import StoreError
from conch_build.sizing import kv_bytes_per_token

Kind = Literal["checkpoint", "quantized", "engine", "quality", "repository"]

ARTIFACT_FILE = "manifest.json"
ENGINE_FILE = "engine.json"
DRAFT_DIR = "draft"
ENGINE_DIR = "engine"
LORA_DIR = "lora"
TOKENIZER_DIR = "tokenizer"
XGRAMMAR_FILE = "xgrammar_tokenizer_info.json"

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "config.json",
)
"""What of a checkpoint an engine keeps beside it, to read and write text."""

SCHEMA = 1


class _Record(BaseModel):
    # "schema" is the name on disk; pydantic keeps that name for itself.
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, use_attribute_docstrings=True)

    def to_json(self) -> str:
        return self.model_dump_json(indent=2, by_alias=True) + "\n"


class StoredFile(_Record):
    size: int
    """Bytes."""
    sha256: str


class ArtifactManifest(_Record):
    """`manifest.json`: what the artifact was made from and what is in it (itself left out)."""

    schema_version: int = Field(default=SCHEMA, alias="schema")
    kind: Kind
    name: str
    key: str
    """sha256 of kind, name and inputs."""
    inputs: dict[str, Any]
    """Everything that decided the content: fingerprints of what it was made from, plan part, versions."""
    files: dict[str, StoredFile]
    """Relative path -> size and hash."""
    versions: dict[str, str]
    created: str
    """ISO 8601, UTC."""
    seconds: float
    """How long making it took."""

    @property
    def size_bytes(self) -> int:
        return sum(file.size for file in self.files.values())

    def save(self, folder: Path) -> None:
        (folder / ARTIFACT_FILE).write_text(self.to_json(), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> ArtifactManifest:
        """Raises StoreError when the file is missing or does not read as a manifest."""
        return _load(cls, folder / ARTIFACT_FILE)


class EngineKvCache(_Record):
    dtype: Literal["u8", "bf16", "f32"]
    tokens_per_block: int
    size_bytes: int
    """Of target and draft together."""
    free_memory_fraction: float | None = None
    """Take so much of what is free when the engine is loaded, instead of `size_bytes`."""
    reuse: bool


class EngineQuantization(_Record):
    format: str
    group_size: int | None = None
    producer: str | None = None
    """Who quantized, as `modelopt 0.47.0`; None when nothing was."""


class EngineSpeculation(_Record):
    method: Literal["none", "draft", "ngram"] = "none"
    """With `draft` the draft model is an engine of its own in the folder DRAFT_DIR."""
    max_draft_len: int = 0
    max_matching_ngram_size: int = 0


class EngineCheckpoint(_Record):
    source: str = "unknown"
    """As the plan names it."""
    sha256: str = "unknown"
    """Fingerprint of weights, config and tokenizer."""


class EngineManifest(_Record):
    """`engine.json`: all that the serving side needs to know of a compiled engine."""

    schema_version: int = Field(default=SCHEMA, alias="schema")
    name: str
    backend: Literal["openvino"]
    architecture: str
    model_type: str
    num_layers: int
    num_attention_heads: int
    num_kv_heads: int
    head_dim: int
    hidden_size: int
    vocab_size: int
    sliding_windows: list[int]
    """Tokens that each layer looks back; 0: all."""
    attention_scale: float | None = None
    """What queries times keys are multiplied with; None: 1/sqrt(head_dim)."""
    attention_softcap: float | None = None
    """Scores s become cap * tanh(s / cap); None: they stay as they are."""
    end_ids: list[int]
    """Every id that ends an answer: config, generation config and tokenizer together."""
    bos_id: int | None
    pad_id: int | None
    precision: Literal["bf16", "f32"]
    threads: int | None = None
    """None: one a core."""
    max_batch_size: int
    max_num_tokens: int
    max_seq_len: int
    max_queue_size: int
    chunked_prefill: bool
    kv_cache: EngineKvCache
    top_candidates: int
    """K of the TopK in the sampling head."""
    quantization: EngineQuantization
    speculation: EngineSpeculation = EngineSpeculation()
    checkpoint: EngineCheckpoint = EngineCheckpoint()
    cpu_features: list[str] = []
    """CPU flags that the engine needs."""
    versions: dict[str, str] = {}
    build_seconds: dict[str, float] = {}

    @property
    def query_scale(self) -> float:
        """What queries times keys are multiplied with."""
        return self.head_dim**-0.5 if self.attention_scale is None else self.attention_scale

    @property
    def kv_block_bytes(self) -> int:
        """Bytes of one KV block over all layers; a layer with a sliding window keeps all of it, too."""
        a_token = kv_bytes_per_token(self.num_layers, self.num_kv_heads, self.head_dim, self.kv_cache.dtype)
        return self.kv_cache.tokens_per_block * a_token

    @property
    def kv_layout(self) -> str:
        """The same for engines that can use each other's KV blocks."""
        weights = (self.checkpoint.sha256, self.quantization.format, self.quantization.group_size, self.precision)
        shape = (self.num_layers, self.num_kv_heads, self.head_dim)
        cache = (self.kv_cache.dtype, self.kv_cache.tokens_per_block)
        return "/".join(map(str, (*weights, *shape, *cache)))

    def num_blocks(self, free_memory_bytes: int, draft: EngineManifest | None = None) -> int:
        """Blocks that the KV cache's budget holds; those of the draft model, where there is one, beside them."""
        fraction, size = self.kv_cache.free_memory_fraction, self.kv_cache.size_bytes
        budget = size if fraction is None else int(fraction * free_memory_bytes)
        return budget // (self.kv_block_bytes + (draft.kv_block_bytes if draft else 0))

    def save(self, folder: Path) -> None:
        (folder / ENGINE_FILE).write_text(self.to_json(), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> EngineManifest:
        """Raises StoreError when the file is missing, damaged or of a later schema."""
        return _load(cls, folder / ENGINE_FILE)


class GpuLimits(_Record):
    max_batch_size: int
    max_num_tokens: int
    max_seq_len: int
    max_queue_size: int
    chunked_prefill: bool


class GpuParallel(_Record):
    tensor: int = 1
    pipeline: int = 1
    expert: int = 1

    @property
    def world_size(self) -> int:
        """GPUs, and so MPI ranks, of one engine."""
        return self.tensor * self.pipeline


class GpuSpeculation(_Record):
    method: str = "none"
    """As the plan names it. `tensorrt` with `draft`: the draft model's engine lies in the folder DRAFT_DIR."""
    max_draft_len: int = 0


class GpuKvCache(_Record):
    dtype: str
    """`fp8`, `int8`, `nvfp4`, or that of the activations."""
    tokens_per_block: int
    reuse: bool


class GpuAdapter(_Record):
    name: str
    id: int
    """From 1: `lora_task_id` of a request, and the adapter's folder in LORA_DIR."""


class GpuLora(_Record):
    max_rank: int
    target_modules: list[str]
    """TensorRT-LLM's names, as `attn_q`."""
    adapters: list[GpuAdapter]


class GpuEngineManifest(_Record):
    """`engine.json` of the backends `tensorrt` and `pytorch`: what was built, for which GPU, by which release.

    Beside it lies TOKENIZER_DIR; of tensorrt also ENGINE_DIR, which is what `trtllm-build` wrote, LORA_DIR where there
    are adapters, and XGRAMMAR_FILE, which guided decoding needs.
    """

    schema_version: int = Field(default=SCHEMA, alias="schema")
    name: str
    backend: Literal["tensorrt", "pytorch"]
    tensorrt_llm: str
    """Release that built it, and the only one that can serve it."""
    container: str
    """Image in which it was built."""
    gpu: str
    """Key of `gpus.GPUS`."""
    architecture: str
    dtype: str
    """Of activations, logits aside: `float16` or `bfloat16`. LoRA weights have the same."""
    vocab_size: int
    end_ids: list[int]
    bos_id: int | None
    pad_id: int | None
    limits: GpuLimits
    parallel: GpuParallel = GpuParallel()
    quantization: EngineQuantization
    kv_cache: GpuKvCache
    speculation: GpuSpeculation = GpuSpeculation()
    lora: GpuLora | None = None
    """None: the engine takes no adapters."""
    checkpoint: EngineCheckpoint = EngineCheckpoint()
    versions: dict[str, str] = {}

    def save(self, folder: Path) -> None:
        (folder / ENGINE_FILE).write_text(self.to_json(), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> GpuEngineManifest:
        """Raises StoreError when the file is missing, damaged or of a later schema."""
        return _load(cls, folder / ENGINE_FILE)


def engine_manifest(folder: Path) -> EngineManifest | GpuEngineManifest:
    """`engine.json` of any backend. Raises StoreError when it is missing, damaged or of a later schema."""
    try:
        on_gpu = json.loads((folder / ENGINE_FILE).read_bytes())["backend"] != "openvino"
    except (OSError, ValueError, KeyError, TypeError):
        on_gpu = False  # what is wrong with it, the reader below says
    return GpuEngineManifest.load(folder) if on_gpu else EngineManifest.load(folder)


_R = TypeVar("_R", ArtifactManifest, EngineManifest, GpuEngineManifest)


def _load(record: type[_R], path: Path) -> _R:
    fix = "Build it again with `conch build`."
    try:
        loaded = record.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        raise StoreError("is missing: this folder is not a whole artifact", where=str(path), fix=fix) from None
    except OSError as error:
        raise StoreError(f"cannot be read: {error.strerror}", where=str(path)) from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        detail = f"`{key}`: {first['msg']}" if key else first["msg"]
        raise StoreError(f"does not read as it should ({detail})", where=str(path), fix=fix) from None
    if loaded.schema_version != SCHEMA:
        raise StoreError(f"has schema {loaded.schema_version}, this Conch reads {SCHEMA}", where=str(path), fix=fix)
    return loaded
