"""The two stages of a CPU engine through the store: ModelOpt's checkpoint, then the compiled engine of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from conch_build.checkpoint import Checkpoint
from conch_build.manifest import DRAFT_DIR, EngineCheckpoint, EngineManifest
from conch_build.plan import Plan
from conch_build.sizing import kv_pool_bytes_for
from conch_build.stages import HERE, Say, Stage, line, slug, sources, versions
from conch_build.store import Artifact, Store


@dataclass(frozen=True)
class _Draft:
    """The draft model of a plan: as which plan it is built, what it is made from, its quantized checkpoint."""

    plan: Plan
    checkpoint: Checkpoint
    quantized: Artifact


def build_engine(
    plan: Plan,
    store: Store,
    checkpoint: Checkpoint,
    draft: tuple[Plan, Checkpoint] | None,
    *,
    log: Path | None,
    force: bool,
    say: Say,
) -> tuple[Artifact, Artifact]:
    """The quantized checkpoint and the engine of a plan, and of its draft model in it."""
    quantized = _quantized(plan, checkpoint, store, log, force, say)
    drafts = _Draft(*draft, _quantized(*draft, store, log, force, say)) if draft else None
    return quantized, _engine(plan, store, checkpoint, quantized, drafts, log, force)


def quantized_stage(plan: Plan, checkpoint: Checkpoint) -> Stage:
    from conch_build.quantize import deciding_settings

    settings = plan.quantization
    quantizes = settings.format != "none"
    return Stage(
        "quantized",
        f"{slug(plan.model.checkpoint)}-{settings.format}",
        {
            "checkpoint": checkpoint.sha256,
            "quantization": deciding_settings(settings),
            "trust_remote_code": plan.model.trust_remote_code,
            "code": sources(*(HERE / name for name in ("quantize.py", "calibration.py"))) if quantizes else "",
        },
        versions("nvidia-modelopt", "torch", "transformers") if quantizes else {},
    )


def engine_stage(plan: Plan, quantized_key: str, draft_key: str | None) -> Stage:
    return Stage(
        "engine",
        plan.name,
        {
            "quantized": quantized_key,
            "draft": draft_key,
            # Adapters get their slots when the graph is loaded; they and the interval change the repository alone.
            "engine": plan.engine.model_dump(
                mode="json", exclude={"lora", "stream_interval", "build_args", "llm_args"}
            ),
            "kv_cache": plan.quantization.kv_cache,
            "code": sources(HERE / "compile" / "openvino"),
        },
        versions("conch", "openvino", "transformers"),
    )


def _quantized(plan: Plan, checkpoint: Checkpoint, store: Store, log: Path | None, force: bool, say: Say) -> Artifact:
    from conch_build.quantize import quantize

    settings, trusted = plan.quantization, plan.model.trust_remote_code

    def make(out: Path) -> None:
        quantize(checkpoint.path, out, settings, checkpoint.info, trust_remote_code=trusted, log=log, say=say)

    artifact = quantized_stage(plan, checkpoint).built(store, make, force=force)
    say(line(artifact))
    return artifact


def _engine(
    plan: Plan,
    store: Store,
    checkpoint: Checkpoint,
    quantized: Artifact,
    draft: _Draft | None,
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

    stage = engine_stage(plan, quantized.key, draft.quantized.key if draft else None)
    return stage.built(store, make, force=force)


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
