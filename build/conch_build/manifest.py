"""What an artifact says of itself: `manifest.json` of every artifact, and `engine.json` of an engine.

Plain frozen records. Knows nothing of how artifacts are made or where they are kept.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from conch_build.errors import StoreError

Kind = Literal["checkpoint", "quantized", "engine", "repository"]

ARTIFACT_FILE = "manifest.json"
ENGINE_FILE = "engine.json"
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
    reuse: bool


class EngineQuantization(_Record):
    format: str
    group_size: int | None = None
    producer: str | None = None
    """Who quantized, as `modelopt 0.47.0`; None when nothing was."""


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
    checkpoint: EngineCheckpoint = EngineCheckpoint()
    cpu_features: list[str] = []
    """CPU flags that the engine needs."""
    versions: dict[str, str] = {}
    build_seconds: dict[str, float] = {}

    def save(self, folder: Path) -> None:
        (folder / ENGINE_FILE).write_text(self.to_json(), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> EngineManifest:
        """Raises StoreError when the file is missing, damaged or of a later schema."""
        return _load(cls, folder / ENGINE_FILE)


_R = TypeVar("_R", ArtifactManifest, EngineManifest)


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
