"""SIGUSR2 to `conch serve`: the plan is read again, built by a process of its own, and rolled out.

What the gateway itself was told at its start cannot change under it: a plan that asks for that is refused, and all
goes on as before.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path

from conch.evaluation import EngineEvaluator
from conch.fleet.fleet import Fleet
from conch.fleet.rolling import roll
from conch.gateway.served import Catalog
from conch.gateway.settings import Membership, ModelSettings
from conch.hosting import check_engine
from conch_build.errors import BuildError, ConchError, PlanError
from conch_build.pipeline import BuildResult, build
from conch_build.plan import Plan, load_plan
from conch_build.store import Say

_BUILT_ANEW = {"model", "quantization", "engine", "quality"}
"""Parts of a plan that another build may have otherwise."""
_ENGINES_OWN = {"servers", "tokenizer"}
_WEIGHTS_OWN = {"config.json", "generation_config.json"}
"""They lie beside the tokenizer and tell of weights and of sampling."""


def reloads(path: Path, fleet: Fleet, model: Callable[[BuildResult], ModelSettings], say: Say) -> Membership:
    """Beside a gateway: rolls the fleet whenever the signal comes. `model`: a build as the gateway would meet it."""

    async def follow(catalog: Catalog) -> None:
        asked = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, asked.set)
        served = catalog.find(fleet.plan.name)
        while True:
            await asked.wait()
            asked.clear()
            try:
                await _reload(path, fleet, served.settings, model, say, catalog)
            except ConchError as error:
                say(f"roll        refused: {error}")

    return follow


async def _reload(
    path: Path,
    fleet: Fleet,
    settings: ModelSettings,
    model: Callable[[BuildResult], ModelSettings],
    say: Say,
    catalog: Catalog,
) -> None:
    if fleet.readers:
        raise PlanError(
            "prompts and answers have engines of their own, which are not replaced under traffic",
            where="serving.disaggregated",
            fix="Start `conch serve` again for that.",
        )
    plan = load_plan(path)
    check_same(fleet.plan, plan)
    say("roll        the plan is built")
    await _build(path)
    built = await asyncio.to_thread(build, plan, evaluator=EngineEvaluator())  # all of it is in the store now
    check_engine(plan, built.engine.path)
    differences = ", ".join(different(settings, model(built)))
    if differences:
        raise PlanError(
            f"requests would be read otherwise than the gateway does ({differences})",
            where=str(path),
            fix="Start `conch serve` again for that.",
        )
    seconds = fleet.plan.serving.gateway.limits.request_timeout
    served = catalog.find(fleet.plan.name)
    await roll(fleet, served.upstream, built, seconds, say)
    served.changed()
    say(f"roll        done: {built.engine.label}")


def check_same(old: Plan, new: Plan) -> None:
    """Raises PlanError for a part of the plan that cannot change under a running gateway."""
    parts = {name for name in type(old).model_fields if name not in _BUILT_ANEW}
    changed = sorted(name for name in parts if getattr(old, name) != getattr(new, name))
    if old.engine.backend != new.engine.backend:
        changed.append("engine.backend")
    if changed:
        raise PlanError(
            f"`{'`, `'.join(changed)}` changed, which a running gateway cannot follow",
            where=changed[0],
            fix="Start `conch serve` again for that.",
        )


def different(old: ModelSettings, new: ModelSettings) -> Iterator[str]:
    """What of two engines a gateway would have to know, and is not the same."""
    for name in (field.name for field in fields(old) if field.name not in _ENGINES_OWN):
        if getattr(old, name) != getattr(new, name):
            yield name
    if _contents(old.tokenizer) != _contents(new.tokenizer):
        yield "tokenizer"


def _contents(folder: Path | None) -> dict[str, bytes]:
    """Of the files that say how texts are read."""
    files = folder.iterdir() if folder else ()
    return {path.name: path.read_bytes() for path in files if path.is_file() and path.name not in _WEIGHTS_OWN}


async def _build(path: Path) -> None:
    """In a process of its own, for streams must flow. Raises BuildError."""
    process = await asyncio.create_subprocess_exec(
        *("nice", sys.executable, "-m", "conch.cli", "build", str(path), "--json"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        told, _ = await process.communicate()
        if process.returncode:
            raise _failure(told, path)
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()


def _failure(told: bytes, path: Path) -> BuildError:
    """What `conch build --json` said."""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        error = json.loads(told)
        return BuildError(error["what"], where=error.get("where") or str(path), fix=error.get("fix") or "")
    return BuildError("it could not be built", where=str(path), fix="Run `conch build` to see why.")
