"""The two stages of a GPU engine through the store: the checkpoint in the backend's form, then the engine of it.

    tensorrt   TensorRT-LLM's rank files            `trtllm-build`'s engine directory, read back before it counts
    pytorch    a quantized Hugging Face checkpoint  the LLM API's arguments, and a link to that checkpoint

A checkpoint is converted again only when its own part of the plan has changed; another batch size is another engine of
the same one.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from conch_build.adapters import CONFIG, WEIGHTS
from conch_build.checkpoint import Checkpoint
from conch_build.compile.gpu_manifest import gpu_manifest
from conch_build.compile.precision import gpu_dtype, gpu_kv_dtype
from conch_build.compile.pytorch.lora import lora_config
from conch_build.compile.pytorch.recipe import checkpoint_recipe as llm_checkpoint_recipe
from conch_build.compile.pytorch.recipe import engine_recipe as llm_engine_recipe
from conch_build.compile.pytorch.recipe import recipe as llm_recipe
from conch_build.compile.run import place_for, run
from conch_build.compile.tensorrt.adapters import target_modules
from conch_build.compile.tensorrt.checkpoint import AWQ_GROUP_SIZES, awq_group_size
from conch_build.compile.tensorrt.engine_config import check_engine
from conch_build.compile.tensorrt.recipe import (
    CHECKPOINT_DIR,
    Source,
    checkpoint_recipe,
    engine_recipe,
    recipe,
    tools_image,
)
from conch_build.errors import SetupError
from conch_build.files import home, sha256_file
from conch_build.gpu.cards import gpu_of
from conch_build.gpu.installed import InstalledGpu, installed_gpus
from conch_build.manifest import DRAFT_DIR, ENGINE_DIR, EngineCheckpoint, GpuEngineManifest
from conch_build.plan import Plan
from conch_build.profiles import container_of, profile_for
from conch_build.recipe import Recipe
from conch_build.stages import HERE, Say, Stage, line, slug, sources
from conch_build.store import Artifact, Store

Draft = tuple[Plan, Checkpoint]


def build_engine(
    plan: Plan, store: Store, checkpoint: Checkpoint, draft: Draft | None, *, log: Path, force: bool, say: Say
) -> tuple[Artifact, Artifact]:
    """The converted checkpoint and the engine of a plan, and of its draft model beside it.

    Raises SetupError where neither docker nor the tools are, BuildError with the reason when a tool fails.
    """
    # Before hours are spent on its first half.
    place_for(whole_recipe(plan, checkpoint, draft, store.root))
    if plan.engine.backend == "tensorrt":
        check_gpu(plan, installed_gpus())
    builder = _Builder(store, log, force, say)
    converted = builder.converted(plan, checkpoint)
    if plan.engine.backend == "pytorch":
        return converted, builder.arguments(plan, checkpoint, converted, draft)
    drafts = None if draft is None else (*draft, builder.converted(*draft))
    return converted, builder.engine(plan, checkpoint, converted, drafts)


def check_gpu(plan: Plan, installed: Sequence[InstalledGpu]) -> None:
    """Raises SetupError where the engine would be one for another GPU: it is built on the kind that runs it."""
    wanted = gpu_of(plan)
    if installed and installed[0].sm != wanted.sm:
        raise SetupError(
            f"this machine has {installed[0].name} (SM{installed[0].sm}), and an engine for {wanted.label} "
            f"(SM{wanted.sm}) is built on one of those",
            fix="Build it there, or change `target.gpu`.",
        )


def whole_recipe(plan: Plan, checkpoint: Checkpoint, draft: Draft | None, out: Path) -> Recipe:
    """Everything that a plan takes, below `out`. Raises PlanError for what its backend cannot do."""
    source = None if draft is None else _source(*draft)
    make = recipe if plan.engine.backend == "tensorrt" else llm_recipe
    return make(plan, checkpoint.info, checkpoint.path, out, draft=source)


def expected(plan: Plan, checkpoint: Checkpoint, sha256: str = "unknown") -> GpuEngineManifest:
    """What the engine of a plan has to be. `sha256`: of its checkpoint, which takes long to find out."""
    profile, info = profile_for(plan), checkpoint.info
    groups = plan.quantization.format in AWQ_GROUP_SIZES and info.quantization is None
    if plan.engine.backend == "tensorrt":
        modules = target_modules(plan, info)
    else:
        modules = tuple((lora_config(plan, info) or {}).get("lora_target_modules", ()))
    return gpu_manifest(
        plan,
        info,
        release=profile.name,
        container=container_of(plan),
        modules=modules,
        group_size=awq_group_size(plan, info) if groups else None,
        checkpoint=EngineCheckpoint(source=checkpoint.source, sha256=sha256),
    )


def converted_stage(plan: Plan, checkpoint: Checkpoint) -> Stage:
    speculation, data = plan.engine.speculation, plan.quantization.calibration.data
    inputs = {
        "checkpoint": checkpoint.sha256,
        "backend": plan.engine.backend,
        "quantization": plan.quantization.model_dump(mode="json"),
        "texts": data if data in ("builtin", "self") else sha256_file(Path(data)),
        "dtype": gpu_dtype(plan, checkpoint.info),
        "kv_cache": gpu_kv_dtype(plan, checkpoint.info),
        "parallel": plan.engine.parallel.model_dump(mode="json"),
        "medusa": speculation.model_dump(mode="json") if speculation.method == "medusa" else None,
        "image": tools_image(plan, profile_for(plan)),
        "code": _code(plan),
    }
    name = f"{slug(plan.model.checkpoint)}-{plan.quantization.format}-{plan.engine.backend}"
    return Stage("quantized", name, inputs, _versions(plan))


def engine_stage(plan: Plan, converted_key: str, draft_key: str | None) -> Stage:
    inputs: dict[str, Any] = {
        "converted": converted_key,
        "draft": draft_key,
        "engine": plan.engine.model_dump(mode="json", exclude={"threads"}),
        "target": plan.target.model_dump(mode="json"),
        "adapters": {name: _fingerprint(Path(path)) for name, path in plan.engine.lora.adapters.items()},
        "code": _code(plan),
    }
    return Stage("engine", plan.name, inputs, _versions(plan))


class _Builder:
    def __init__(self, store: Store, log: Path, force: bool, say: Say) -> None:
        self.store = store
        self.log = log
        self.force = force
        self.say = say

    def converted(self, plan: Plan, checkpoint: Checkpoint) -> Artifact:
        """The checkpoint in the backend's form."""

        def make(out: Path) -> None:
            if plan.engine.backend == "tensorrt":
                steps = checkpoint_recipe(_source(plan, checkpoint), out)
            else:
                steps = llm_checkpoint_recipe(plan, checkpoint.info, checkpoint.path, out)
            self._run(steps, _read_by(plan, checkpoint), out)

        artifact = converted_stage(plan, checkpoint).built(self.store, make, force=self.force)
        self.say(line(artifact))
        return artifact

    def engine(
        self, plan: Plan, checkpoint: Checkpoint, converted: Artifact, draft: tuple[Plan, Checkpoint, Artifact] | None
    ) -> Artifact:
        """The engine directory, its draft's, adapters and tokenizer, and what all of it is."""

        def make_one(plan: Plan, checkpoint: Checkpoint, converted: Artifact, out: Path, is_draft: bool) -> None:
            with converted.hold() as folder:
                rank_files = folder / CHECKPOINT_DIR
                steps = engine_recipe(_source(plan, checkpoint), out, rank_files, draft=is_draft)
                self._run(steps, (*_read_by(plan, checkpoint), folder), out)
            wanted = expected(plan, checkpoint, checkpoint.sha256)
            check_engine(out / ENGINE_DIR, wanted)
            wanted.save(out)

        def make(out: Path) -> None:
            make_one(plan, checkpoint, converted, out, is_draft=False)
            if draft is not None:
                make_one(*draft, out / DRAFT_DIR, is_draft=True)

        stage = engine_stage(plan, converted.key, draft[2].key if draft else None)
        return stage.built(self.store, make, force=self.force)

    def arguments(self, plan: Plan, checkpoint: Checkpoint, converted: Artifact, draft: Draft | None) -> Artifact:
        """The LLM API's arguments and the tokenizer, beside a link to the checkpoint that they are for."""

        def make(out: Path) -> None:
            source = _source(*draft) if draft else None
            self._run(llm_engine_recipe(plan, checkpoint.info, checkpoint.path, out, draft=source), (), out)
            (out / CHECKPOINT_DIR).symlink_to(converted.path / CHECKPOINT_DIR)
            expected(plan, checkpoint, checkpoint.sha256).save(out)

        return engine_stage(plan, converted.key, draft[1].sha256 if draft else None).built(
            self.store, make, force=self.force
        )

    def _run(self, steps: Recipe, read: Sequence[Path], out: Path) -> None:
        run(steps, place_for(steps, read=read, write=(home(), out)), self.log, say=self.say)


def _source(plan: Plan, checkpoint: Checkpoint) -> Source:
    return Source(plan, checkpoint.info, checkpoint.path)


def _read_by(plan: Plan, checkpoint: Checkpoint) -> Sequence[Path]:
    """Folders that the commands read."""
    speculation = plan.engine.speculation
    heads = [speculation.checkpoint] if speculation.method == "medusa" and speculation.checkpoint else []
    return (checkpoint.path, *map(Path, plan.engine.lora.adapters.values()), *map(Path, heads))


def _fingerprint(adapter: Path) -> list[str]:
    return [sha256_file(adapter / name) for name in (CONFIG, WEIGHTS)]


def _versions(plan: Plan) -> dict[str, str]:
    return {"tensorrt_llm": profile_for(plan).name}


def _code(plan: Plan) -> str:
    """The commands decide what comes out; who runs them does not."""
    folder = HERE / "compile"
    return sources(
        folder / "precision.py", folder / "gpu_adapters.py", folder / "gpu_manifest.py", folder / plan.engine.backend
    )
