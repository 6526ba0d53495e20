"""The whole build: checkpoint -> quantized -> engine -> Triton repository, each stage through the store.

A stage is built again only when something that decides its result has changed: what came before it, its part
of the plan, its code, or the libraries it calls. Knows what decides each stage, not how it works.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from conch_build import checkpoint as checkpoints
from conch_build import pack, preflight
from conch_build.adapter_registry import register
from conch_build.checkpoint import Checkpoint
from conch_build.extras import lacking
from conch_build.files import home, sha256_file
from conch_build.manifest import DRAFT_DIR, EngineCheckpoint, EngineManifest
from conch_build.plan import Plan, plan_of_draft
from conch_build.sizing import kv_pool_bytes_for
from conch_build.store import Artifact, Store
from conch_build.units import format_bytes, format_seconds

Say = Callable[[str], None]

_HERE = Path(__file__).parent


@dataclass(frozen=True)
class BuildResult:
    """What a build gives: where each stage's result is, and whether it was there before."""

    checkpoint: Checkpoint
    quantized: Artifact
    engine: Artifact
    repository: Artifact
    seconds: float

    @property
    def artifacts(self) -> tuple[Artifact, ...]:
        return self.quantized, self.engine, self.repository

    def as_dict(self) -> dict[str, Any]:
        """The build as `--json` prints it."""
        return {
            "checkpoint": {"source": self.checkpoint.source, "path": str(self.checkpoint.path)},
            "artifacts": {
                artifact.kind: {**artifact.as_dict(), "reused": artifact.reused} for artifact in self.artifacts
            },
            "seconds": round(self.seconds, 3),
        }


@dataclass(frozen=True)
class Draft:
    """The draft model of a plan: what it is made from, and as which plan it would be built."""

    plan: Plan
    checkpoint: Checkpoint
    quantized: Artifact


def build(
    plan: Plan,
    store: Store | None = None,
    *,
    cache_dir: Path | None = None,
    force: bool = False,
    verbose: bool = False,
    say: Say = lambda text: None,
) -> BuildResult:
    """Build what `plan` describes, starting at the first stage whose result is missing.

    `force` builds every stage again; `verbose` shows what the libraries print, which otherwise goes to a log
    under Conch's home. Raises CheckError before any work when the plan cannot work, else what a stage raises.
    """
    started = time.monotonic()
    store = store or Store(say=say)
    violations = preflight.check(plan, cache_dir, say=say)
    preflight.raise_for(violations)
    for violation in violations:
        say(str(violation))
    checkpoint = checkpoints.resolve(plan.model, cache_dir, say=say)
    parameters = f"{checkpoint.info.parameters / 1e6:,.0f}M parameters"
    say(f"checkpoint  {plan.model.checkpoint}: {checkpoint.info.architecture}, {parameters}")
    log = None if verbose else home() / "logs" / f"{plan.name}-build.log"

    quantized = _quantized(plan, store, checkpoint, log, force, say)
    draft = _draft(plan, store, cache_dir, log, force, say)
    engine = _engine(plan, store, checkpoint, quantized, draft, log, force)
    say(_line(engine))
    registry = register(plan.engine.lora, checkpoint.info)
    repository = store.get_or_build(
        "repository",
        plan.name,
        {
            "engine": {"key": engine.key, "path": str(engine.path)},
            "layout": pack.layout_of(plan),
            "stream_interval": plan.engine.stream_interval,
            "adapters": registry.model_dump(mode="json") if registry else None,
            "code": _sources(_HERE / "pack.py", pack.templates_dir()),
        },
        lambda out: pack.pack(engine.path, out, plan, registry),
        versions=_versions("conch"),
        force=force,
    )
    say(_line(repository))
    return BuildResult(checkpoint, quantized, engine, repository, time.monotonic() - started)


def _quantized(
    plan: Plan,
    store: Store,
    checkpoint: Checkpoint,
    log: Path | None,
    force: bool,
    say: Say,
) -> Artifact:
    from conch_build.quantize import deciding_settings, quantize

    settings, trusted = plan.quantization, plan.model.trust_remote_code

    def make(out: Path) -> None:
        quantize(checkpoint.path, out, settings, checkpoint.info, trust_remote_code=trusted, log=log, say=say)

    quantizes = settings.format != "none"
    artifact = store.get_or_build(
        "quantized",
        f"{_slug(plan.model.checkpoint)}-{settings.format}",
        {
            "checkpoint": checkpoint.sha256,
            "quantization": deciding_settings(settings),
            "trust_remote_code": trusted,
            "code": _sources(*(_HERE / name for name in ("quantize.py", "calibration.py"))) if quantizes else "",
        },
        make,
        versions=_versions("nvidia-modelopt", "torch", "transformers") if quantizes else {},
        force=force,
    )
    say(_line(artifact))
    return artifact


def _draft(plan: Plan, store: Store, cache_dir: Path | None, log: Path | None, force: bool, say: Say) -> Draft | None:
    """The draft model of a plan, quantized as its target is unless it comes quantized."""
    own = plan_of_draft(plan)
    if own is None:
        return None
    checkpoint = checkpoints.resolve(own.model, cache_dir, say=say)
    if checkpoint.info.quantization is not None:
        own = own.model_copy(update={"quantization": own.quantization.model_copy(update={"format": "none"})})
    return Draft(own, checkpoint, _quantized(own, store, checkpoint, log, force, say))


def _engine(
    plan: Plan,
    store: Store,
    checkpoint: Checkpoint,
    quantized: Artifact,
    draft: Draft | None,
    log: Path | None,
    force: bool,
) -> Artifact:
    from conch_build.quiet import quiet

    def make(out: Path) -> None:
        from conch_build.compile.openvino import compile_engine

        with quantized.hold() as folder, quiet(log):
            manifest = compile_engine(folder, out, plan, checkpoint.info)
        drafts = None
        if draft is not None:
            (out / DRAFT_DIR).mkdir()
            with draft.quantized.hold() as folder, quiet(log):
                drafts = compile_engine(folder, out / DRAFT_DIR, draft.plan, draft.checkpoint.info)
            _complete(drafts, draft.checkpoint, draft.quantized).save(out / DRAFT_DIR)
        manifest = _complete(manifest, checkpoint, quantized)
        _sized(manifest, drafts, plan).save(out)

    return store.get_or_build(
        "engine",
        plan.name,
        {
            "quantized": quantized.key,
            "draft": draft.quantized.key if draft else None,
            # Adapters get their slots when the graph is loaded; they and the interval change the repository alone.
            "engine": plan.engine.model_dump(mode="json", exclude={"lora", "stream_interval"}),
            "kv_cache": plan.quantization.kv_cache,
            "code": _sources(_HERE / "compile" / plan.engine.backend),
        },
        make,
        versions=_versions("conch", "openvino", "transformers"),
        force=force,
    )


def _sized(manifest: EngineManifest, draft: EngineManifest | None, plan: Plan) -> EngineManifest:
    """The KV cache's size where the plan gives it as a number of requests."""
    requests = plan.engine.kv_cache.concurrency
    if requests is None:
        return manifest
    block = manifest.kv_block_bytes + (draft.kv_block_bytes if draft else 0)
    size = kv_pool_bytes_for(requests, manifest.max_seq_len, manifest.kv_cache.tokens_per_block, block)
    return manifest.model_copy(update={"kv_cache": manifest.kv_cache.model_copy(update={"size_bytes": size})})


def _complete(manifest: EngineManifest, checkpoint: Checkpoint, quantized: Artifact) -> EngineManifest:
    """What the compiler cannot know: where the weights came from and what was done to them before."""
    return manifest.model_copy(
        update={
            "checkpoint": EngineCheckpoint(source=checkpoint.source, sha256=checkpoint.sha256),
            "versions": {**quantized.manifest.versions, **manifest.versions},
            "build_seconds": {"quantize": quantized.manifest.seconds, **manifest.build_seconds},
        }
    )


def _line(artifact: Artifact) -> str:
    how = "reused" if artifact.reused else f"built in {format_seconds(artifact.manifest.seconds)}"
    return f"{artifact.kind:<10}  {artifact.path.name}: {how} ({format_bytes(artifact.manifest.size_bytes)})"


def _slug(source: str) -> str:
    """A checkpoint's name as part of a folder's name."""
    return re.sub(r"[^A-Za-z0-9._]+", "-", Path(source).name).strip("-.")[:48] or "checkpoint"


def _versions(*distributions: str) -> dict[str, str]:
    try:
        return {name: version(name) for name in distributions}
    except PackageNotFoundError as error:
        raise lacking(error) or error from None


def _sources(*paths: Path) -> str:
    """Hash of a stage's own files: a change of its code is a change of its result."""
    files: Iterable[Path] = (file for path in paths for file in (sorted(path.rglob("*")) if path.is_dir() else [path]))
    digest = hashlib.sha256()
    for file in files:
        if file.is_file() and "__pycache__" not in file.parts:
            digest.update(f"{file.name} {sha256_file(file)}\n".encode())
    return digest.hexdigest()
