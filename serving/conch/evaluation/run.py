"""What `conch eval` runs: a plan's engine beside its baseline, or a server beside another or beside that baseline."""

from __future__ import annotations

from dataclasses import dataclass, replace

from conch.evaluation import EngineEvaluator
from conch_build.pipeline import baseline_of, build_baseline, build_engine, checked, judged
from conch_build.plan import Plan
from conch_build.plan_quality import Quality
from conch_build.quality import Figures, Subject, judge, work_of
from conch_build.quality.gate import baseline_plan
from conch_build.stages import Say
from conch_build.store import Store


@dataclass(frozen=True)
class Server:
    """A URL to ask, and how. `model` None: the only one there."""

    url: str
    model: str | None = None
    api_key: str | None = None


def of_plan(plan: Plan, *, force: bool, verbose: bool, say: Say) -> Figures:
    """The figures of a plan's build, whatever its limits say; those that its gate has measured are taken from there."""
    evaluator = EngineEvaluator()
    evaluator.check(plan)
    store = Store(say=say)
    checkpoint, engine = build_engine(plan, store, verbose=verbose, say=say)
    artifact = judged(plan, store, checkpoint, engine, evaluator, force=force, verbose=verbose, say=say)
    return Figures.load(artifact.path)


def of_server(
    server: Server, baseline: Server | None, plan: Plan | None, quality: Quality, *, with_text: bool, say: Say
) -> Figures:
    """The figures of a server beside those of `baseline`, else of the unquantized engine of a `plan` for CPUs."""
    from conch.evaluation.remote import ServedSubject

    work = work_of(quality)
    if not with_text:
        work = replace(work, texts=())
    subject = ServedSubject(server.url, server.model, server.api_key)
    other: Subject | None = None
    if baseline is not None:
        other = ServedSubject(baseline.url, baseline.model, baseline.api_key)
    elif plan is not None and plan.engine.backend == "openvino":
        from conch.evaluation.engine import EngineSubject

        plain = plan.model_copy(update={"quality": quality})
        source = baseline_of(plain, checked(plain, None, say), None, say)
        engine = build_baseline(baseline_plan(plain), Store(say=say), source, False, say)
        with engine.hold() as folder:
            return judge(EngineSubject(folder, say), subject, work)
    return judge(other, subject, work)
