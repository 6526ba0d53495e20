"""Models that can be asked for their quality: a compiled engine in process, a server by its URL.

Here the two packages meet: what is asked and what is made of the answers is `conch_build.quality`'s.
"""

from __future__ import annotations

from conch_build.errors import SetupError
from conch_build.plan import Plan
from conch_build.quality import Figures, Recorded, Work, judge
from conch_build.quality.gate import Side
from conch_build.stages import Say


class EngineEvaluator:
    """The evaluator of a build's quality gate: on CPUs in process, on GPUs behind `conch serve`, one by one."""

    def check(self, plan: Plan) -> None:
        """Raise SetupError for what this machine lacks to serve `plan`."""
        from conch.hosting import hosting_of

        try:
            hosting_of(plan)
        except SetupError as error:
            raise SetupError(f"the gate serves the engine, and {error.what}", where="quality", fix=error.fix) from None

    def measure(self, baseline: Side, build: Side, work: Work, say: Say) -> Figures:
        if build.plan.engine.backend == "openvino":
            from conch.evaluation.engine import EngineSubject

            return judge(EngineSubject(baseline.engine, say), EngineSubject(build.engine, say), work)
        from conch.evaluation.served import served

        def recorded(side: Side) -> Recorded:
            with served(side.plan, side.store, say) as subject:
                return Recorded.of(subject, work)

        return judge(recorded(baseline), recorded(build), work)
