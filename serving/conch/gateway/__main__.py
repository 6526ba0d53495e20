"""`python -m conch.gateway ENGINE --grpc-url HOST:PORT`: a gateway for a Triton that runs somewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from conch_build.console import Console, with_console


@click.command()
@click.argument("engine", type=click.Path(path_type=Path))
@click.option("--grpc-url", required=True, help="Triton's gRPC port, host:port.")
@click.option("--repository", type=click.Path(path_type=Path), help="Triton's repository, which names the adapters.")
@click.option("--metrics-url", help="Triton's metrics, http://host:port/metrics.")
@click.option("--plan", "plan_path", type=click.Path(path_type=Path), help="Whose `serving.gateway` says the rest.")
@click.option("--host", help="Default: the plan's, or 127.0.0.1.")
@click.option("--port", type=click.IntRange(0, 65535), help="Default: the plan's, or 8080; 0 takes a free one.")
@click.option("--published-on", help="Where a container's port can be reached; default: the address bound to.")
@click.option("--every-address", is_flag=True, help="Ask each server that --grpc-url's name stands for now.")
@click.option("--require-key", is_flag=True, help="Answer nobody without a key, also before there is one.")
@click.option("--drain-seconds", type=click.FloatRange(0), help="After SIGTERM; default: the plan's, or 30.")
@click.option("--tool-format", help="How the model writes calls of tools.")
@click.option("--lenient", is_flag=True, help="Leave out unknown parameters with a warning.")
@with_console
def main(
    console: Console,
    engine: Path,
    grpc_url: str,
    repository: Path | None,
    metrics_url: str | None,
    plan_path: Path | None,
    host: str | None,
    port: int | None,
    published_on: str | None,
    every_address: bool,
    require_key: bool,
    drain_seconds: float | None,
    tool_format: str | None,
    lenient: bool,
) -> None:
    """Serve the engine artifact ENGINE over OpenAI's REST API."""
    from conch.gateway.routing.addresses import addresses
    from conch.gateway.settings import GatewaySettings, ModelSettings, Server, other_models
    from conch.gateway.transport.server import run
    from conch_build.plan import load_plan
    from conch_build.plan_gateway import Gateway

    loaded = load_plan(plan_path) if plan_path else None
    plan = loaded.serving.gateway if loaded else Gateway()
    given: dict[str, Any] = {"host": host, "port": port, "unknown_parameters": "warn" if lenient else None}
    if drain_seconds is not None:
        given["limits"] = plan.limits.model_copy(update={"drain_timeout": drain_seconds})
    plan = plan.model_copy(update={name: value for name, value in given.items() if value is not None})
    servers = [] if every_address else [Server(grpc_url, metrics_url)]
    model = ModelSettings.for_engine(engine, servers, repository, tool_format=tool_format or plan.tool_format)
    price = loaded.cost.instance_hourly_usd if loaded else None
    settings = GatewaySettings(
        (model, *other_models(plan, model.name)),
        plan,
        published_on=published_on,
        hourly_usd=price,
        require_key=require_key,
        membership=addresses(model.name, grpc_url, metrics_url, plan.limits.request_timeout) if every_address else None,
    )
    run(settings, on_ready=lambda url: console.result({"url": url}, f"listening on {url}"))


if __name__ == "__main__":
    main()
