"""The `conch` command: building and serving under one name. Commands are imported only when they run.

Exit codes: 0 done, 1 a fault in Conch, 2 wrong input, 3 a build failed, 4 the machine lacks something,
5 a server failed, 6 it did not answer in time, 7 some rows of a batch have no answer, 130 interrupted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from conch_build.cli import LAZY_COMMANDS
from conch_build.console import LazyGroup

if TYPE_CHECKING:
    from conch.evaluation import EngineEvaluator


def evaluator() -> EngineEvaluator:
    """Runs engines for the quality gate of `conch build`, which knows none."""
    from conch.evaluation import EngineEvaluator

    return EngineEvaluator()


main = LazyGroup(
    "conch",
    lazy={
        **LAZY_COMMANDS,
        "draft": ("conch.commands.draft:draft", "Make a draft model that speeds a plan's target up."),
        "serve": ("conch.commands.serve:serve", "Start Triton and the gateway for a plan."),
        "chat": ("conch.commands.chat:chat", "Talk to a running gateway."),
        "generate": ("conch.commands.generate:generate", "Send one prompt to a running Triton."),
        "batch": ("conch.commands.batch:batch", "Ask a model about each row of a table."),
        "bench": ("conch.commands.bench:bench", "Measure a running gateway: tok/s, TTFT, ITL."),
        "eval": ("conch.commands.eval:evaluate", "Measure what a build lost in quality."),
        "keys": ("conch.commands.keys:keys", "Make, list, rotate and revoke a gateway's API keys."),
        "usage": ("conch.commands.usage:usage", "Say what keys, models and adapters used and cost."),
        "gpu-check": ("conch.commands.gpu_check:gpu_check", "Try every GPU backend here; one report to send back."),
        "gateway": ("conch.commands.gateway:gateway", "Start the gateway alone, before servers elsewhere."),
        "ab": ("conch.commands.ab:ab", "Show and steer a gateway's experiments."),
        "simulate": ("conch.commands.simulate:simulate", "Simulate a fleet: how many, how split, what breaks first."),
        "tune": ("conch.commands.tune:tune", "Search a plan's serving settings for its SLO at the lowest cost."),
        "ladder": ("conch.commands.ladder:ladder", "Measure what each layer of optimization brings here."),
        "checklist": ("conch.commands.checklist:checklist", "What a plan needs before, at and after deployment."),
        "doctor": ("conch.commands.doctor:doctor", "Say what this machine lacks."),
    },
    help="Build LLM checkpoints into engines and serve them through Triton.",
    context_settings={"obj": evaluator},
    epilog="Exit codes: 2 wrong input, 3 build failed, 4 machine lacks something, 5 server failed, 6 timed out, "
    "7 some rows failed.",
)
click.version_option(package_name="conch", prog_name="conch")(main)

if __name__ == "__main__":
    main()
