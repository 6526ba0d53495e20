"""Pre-deployment: whether the plan works, is built as it stands, passes its gate, and kept its SLO under load.

Runs no model: it reads what `conch check`, `conch build` and `conch bench --save` have found.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from conch.bench.traffic.saved import read_rounds
from conch.checklist.points import Point, person, seen, unseen
from conch_build.errors import ConchError
from conch_build.plan import Plan, Slo
from conch_build.preflight import inspect
from conch_build.quality import Figures
from conch_build.stages import Say
from conch_build.standing import Standing, standing_of
from conch_build.store import Store
from conch_build.units import format_seconds


def before(plan: Plan, path: Path, store: Store, bench: Path | None, say: Say) -> Iterator[Point]:
    """`bench`: what `conch bench --save` wrote of this plan's server."""
    found = inspect(plan, say=say)
    errors = [violation for violation in found.violations if violation.severity == "error"]
    warnings = [violation for violation in found.violations if violation.severity == "warning"]
    named = ", ".join(violation.rule for violation in errors) or "no rule is broken"
    yield seen("plan.works", found.works, named, f"`conch check {path}` says what to do.")
    if warnings:
        yield person(
            "plan.warnings",
            f"Judge the warnings of `conch check`: {', '.join(dict.fromkeys(v.rule for v in warnings))}",
        )
    yield from _trust(plan)
    if found.works:
        yield from _built(plan, path, store, say)
    yield _quality_limits(plan)
    yield from _terms(plan)
    yield from _loaded(plan, path, bench)
    yield person("model.license", f"Read the license of {plan.model.checkpoint}: is this use of it allowed?")
    yield person("model.own_prompts", "Read answers to prompts of your own users, beside those of the model before.")


def _trust(plan: Plan) -> Iterator[Point]:
    risky = [name for name in ("trust_remote_code", "allow_pickle") if getattr(plan.model, name)]
    if risky:
        keys = " and ".join(f"model.{name}" for name in risky)
        yield person("model.code", f"{keys} let code of the checkpoint run: read that code, and pin `model.revision`.")
    else:
        yield seen("model.code", True, "no code of the checkpoint runs")


def _built(plan: Plan, path: Path, store: Store, say: Say) -> Iterator[Point]:
    from conch_build.pipeline import checked, draft_of

    build = f"Run `conch build {path}`."
    standing = standing_of(plan, store, checked(plan, None, lambda text: None), draft_of(plan, None, say))
    artifacts = [(stage, stage.found(store)) for stage in standing]
    if missing := [stage.kind for stage, artifact in artifacts if artifact is None]:
        yield seen("build.there", False, f"the plan as it stands is not built: no {', '.join(missing)}", build)
    else:
        yield seen("build.there", True, f"repository/{standing.repository.path(store).name}")
        damaged = [damage for _, artifact in artifacts if artifact for damage in artifact.damage(full=True)]
        yield seen("build.whole", not damaged, damaged[0] if damaged else "every file has its hash", build)
    yield from _quality_record(plan, store, standing, build)


def _quality_record(plan: Plan, store: Store, standing: Standing, build: str) -> Iterator[Point]:
    if standing.quality is None:
        return
    artifact = standing.quality.found(store)
    if artifact is None:
        yield seen("quality.passed", False, "the engine was not judged", build)
        return
    try:
        broken = Figures.load(artifact.path).broken(plan.quality.limits)
    except ConchError as error:
        broken = [error.message]
    held = ", ".join(plan.quality.limits)
    fix = "Choose a milder `quantization`, or other limits in `quality`."
    yield seen("quality.passed", not broken, "; ".join(broken) or f"holds {held}", fix)


def _quality_limits(plan: Plan) -> Point:
    limits = ", ".join(f"{name} {bound:g}" for name, bound in plan.quality.limits.items())
    fix = "Set limits in `quality`, as `perplexity_ratio_max: 1.05`; `conch eval` shows where the build stands."
    return seen("quality.limits", bool(limits), limits or "nothing stops a build that has become worse", fix)


def _terms(plan: Plan) -> Iterator[Point]:
    unset = [f"slo.{name}" for name in ("ttft_p95", "itl_p95") if getattr(plan.slo, name) is None]
    fix = "Set them, as `slo: {ttft_p95: 500ms, itl_p95: 50ms}`."
    yield seen("slo.set", not unset, f"no {' and no '.join(unset)}" if unset else _slo(plan.slo), fix)
    hourly = plan.cost.instance_hourly_usd
    told = "no cost.instance_hourly_usd: nobody sees what tokens cost" if hourly is None else f"${hourly:g} an hour"
    yield seen("cost.set", hourly is not None, told, "Set it, as `cost: {instance_hourly_usd: 2.5}`.")


def _loaded(plan: Plan, path: Path, bench: Path | None) -> Iterator[Point]:
    if bench is None:
        fix = f"Run `conch bench --plan {path} --save run.json` at the traffic you expect, and give --bench run.json."
        yield unseen("slo.measured", "no measured load was given", fix)
        return
    rounds = read_rounds(bench)
    if plan.slo == Slo():
        yield unseen("slo.measured", "the plan has no SLO to hold the load against", "Set `slo` first.")
        return
    broken = [phrase for rows in rounds for row in rows.values() for phrase in _broken(plan.slo, row)]
    loads = ", ".join(rounds[0])
    fix = "Serve less of it at once, add replicas (`conch size`), or find better settings."
    yield seen("slo.measured", not broken, "; ".join(broken) or f"kept in {len(rounds)} round(s) of {loads}", fix)


def _broken(slo: Slo, row: Mapping[str, Any]) -> Iterator[str]:
    for name in ("ttft", "itl"):
        limit, value = getattr(slo, f"{name}_p95"), row.get(f"{name}_p95_ms")
        if limit is not None and (value is None or value > 1e3 * limit):
            told = "was not measured" if value is None else f"is {value:.1f} ms, above {1e3 * limit:g} ms"
            yield f"{name} p95 {told} at {row['load']}"
    if failed := sum(row["errors"].values()):
        yield f"{failed} request(s) failed at {row['load']}"


def _slo(slo: Slo) -> str:
    given = {"ttft p95": slo.ttft_p95, "itl p95": slo.itl_p95}
    return ", ".join(f"{name} {format_seconds(value)}" for name, value in given.items() if value is not None)
