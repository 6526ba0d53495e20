"""The files of a cluster and the command that starts it.

    out/context.yaml, out/generation.yaml   arguments of the workers
    out/proxy.yaml                          the proxy's own file
    out/disagg.sh                           starts and ends them

Decides nothing itself and runs nothing.
"""

from __future__ import annotations

from pathlib import Path

from conch_build.compile.pytorch.arguments import to_yaml
from conch_build.compile.pytorch.serve import SERVE, checked_argv, serve_argv
from conch_build.disaggregated import rules
from conch_build.disaggregated.arguments import longest_prompt, worker_args
from conch_build.disaggregated.layout import workers_of
from conch_build.disaggregated.proxy import proxy_config
from conch_build.disaggregated.script import script
from conch_build.model_info import ModelInfo
from conch_build.plan import Plan
from conch_build.profiles import container_of, profile_for
from conch_build.recipe import Command, Recipe, TextFile

PROXY_SECONDS = 600
"""That the proxy waits for workers, and for the answer to a request."""


def recipe(plan: Plan, info: ModelInfo, model: Path, out: Path, *, draft: Path | None = None) -> Recipe:
    """Everything below `out` to serve the checkpoint `model`. Raises PlanError for what cannot work."""
    profile = profile_for(plan)
    workers = workers_of(plan)
    context = worker_args(plan, info, profile, "context", draft)
    generation = worker_args(plan, info, profile, "generation", draft)
    proxy = proxy_config(plan, workers)
    rules.check(rules.Cluster(proxy, context, generation, longest_prompt(plan)), profile)
    at = f"{proxy['hostname']}:{proxy['port']}"
    commands = [
        checked_argv(serve_argv(model, f"$here/{worker.role}.yaml", worker.host, worker.port), profile)
        for worker in workers
    ]
    seconds = str(PROXY_SECONDS)
    serve = [SERVE, "disaggregated", "-c", "$here/proxy.yaml", "-t", seconds, "-r", seconds]
    text = script(plan.name, workers, commands, checked_argv(serve, profile), at)
    return Recipe(
        (
            TextFile("arguments of the context workers", str(out / "context.yaml"), to_yaml(context)),
            TextFile("arguments of the generation workers", str(out / "generation.yaml"), to_yaml(generation)),
            TextFile("where the proxy finds them", str(out / "proxy.yaml"), to_yaml(proxy)),
            TextFile("starts and ends the cluster", str(out / "disagg.sh"), text),
            Command("start the cluster", ("sh", str(out / "disagg.sh"), "run"), image=container_of(plan)),
        )
    )
