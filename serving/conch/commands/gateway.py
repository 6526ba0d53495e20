"""`conch gateway`: the gateway alone, before servers that run elsewhere."""

from __future__ import annotations

from pathlib import Path

import click

from conch_build.console import Console, with_console


@click.command()
@click.argument("plan", type=click.Path(path_type=Path), default="conch.yaml")
@with_console
def gateway(console: Console, plan: Path) -> None:
    """Serve the models of PLAN's `serving.gateway.models` over OpenAI's REST API, and print the address.

    Nothing is built and no engine started: the servers that the plan names are there already, or come.
    SIGTERM or Ctrl-C drains: running answers end, new ones are refused. A second one ends at once.
    """
    from conch.gateway.settings import GatewaySettings, other_models
    from conch.gateway.transport.server import run
    from conch_build.errors import PlanError
    from conch_build.plan import load_plan

    loaded = load_plan(plan)
    models = other_models(loaded.serving.gateway)
    if not models:
        fix = "Name some with their servers, or let `conch serve` start the plan's own."
        raise PlanError("there is no model to serve", where="serving.gateway.models", fix=fix)
    settings = GatewaySettings(models, loaded.serving.gateway, hourly_usd=loaded.cost.instance_hourly_usd)
    names = [model.name for model in models]
    run(settings, on_ready=lambda url: console.result({"url": url, "models": names}, f"gateway  {url}"))
