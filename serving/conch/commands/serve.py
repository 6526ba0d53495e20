"""`conch serve`: a plan's engine behind a watched Triton and the gateway, until a signal ends them."""

from __future__ import annotations

import contextlib
import signal
import time
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

from conch_build.console import Console, with_console
from conch_build.units import format_seconds

if TYPE_CHECKING:
    from conch.hosting import Hosting
    from conch_build.pipeline import BuildResult
    from conch_build.plan import Plan


@click.command()
@click.argument("plan", type=click.Path(path_type=Path), default="conch.yaml")
@with_console
def serve(console: Console, plan: Path) -> None:
    """Build what PLAN lacks, start Triton and the gateway, and print their addresses once both answer.

    A plan for GPUs needs a machine that has them, with a tritonserver and TensorRT-LLM: NVIDIA's container is one.

    SIGTERM or Ctrl-C drains: running answers end, new ones are refused. A second one ends at once.
    """
    from conch.evaluation import EngineEvaluator
    from conch.hosting import check_engine, hosting_of
    from conch_build.pipeline import build
    from conch_build.plan import load_plan

    signal.signal(signal.SIGTERM, _interrupt)  # until the gateway takes over: leave by the same way as Ctrl-C
    loaded = load_plan(plan)
    hosting = hosting_of(loaded)
    built = build(loaded, evaluator=EngineEvaluator(), say=console.note)
    check_engine(loaded, built.engine.path)
    _serve(console, loaded, built, hosting)


def _serve(console: Console, plan: Plan, built: BuildResult, hosting: Hosting) -> None:
    from conch.gateway.keys.authority import check_place
    from conch.gateway.settings import GatewaySettings, ModelSettings, Server, gateway_home, other_models
    from conch.gateway.transport.server import listen, run
    from conch.gateway.transport.tls import context_of
    from conch.gateway.watching.observability import check_told
    from conch.triton import State, TritonServer
    from conch_build.files import home

    started = time.monotonic()
    ports, gateway = plan.serving.triton, plan.serving.gateway
    with contextlib.ExitStack() as stack:
        for artifact in built.artifacts:
            stack.enter_context(artifact.hold())
        # What cannot work is found out before a model is loaded for nothing.
        others = other_models(gateway, plan.name)
        context_of(gateway.tls)
        check_told(gateway)
        sock = listen(gateway.host, gateway.port)
        stack.enter_context(sock)
        check_place(sock.getsockname()[0], gateway, gateway_home())
        triton = TritonServer(
            built.repository.path,
            http_port=ports.http_port,
            grpc_port=ports.grpc_port,
            metrics_port=ports.metrics_port,
            log_path=home() / "logs" / f"{plan.name}-triton.log",
            run_folder=home() / "run",
            **vars(hosting),
        )
        triton.on_change(lambda state: console.note(f"triton      {state.value}"))
        stack.callback(triton.stop)
        triton.start()
        model = ModelSettings.for_engine(
            built.engine.path,
            [Server(triton.grpc_url, triton.metrics_url)],
            built.repository.path,
            tool_format=gateway.tool_format,
        )
        settings = GatewaySettings((model, *others), gateway, hourly_usd=plan.cost.instance_hourly_usd)

        def announce(url: str) -> None:
            seconds = time.monotonic() - started
            urls = {
                "gateway": url,
                "triton_http": triton.http_url,
                "triton_grpc": triton.grpc_url,
                "triton_metrics": triton.metrics_url,
            }
            console.note(f"ready in {format_seconds(seconds)}; Ctrl-C stops it")
            console.result(
                {**urls, "model": plan.name, "ready_seconds": round(seconds, 3)},
                "\n".join(f"{name:<14}  {address}" for name, address in urls.items()),
            )

        run(settings, sock, announce)
        if triton.state is not State.STOPPED:
            triton.stop()


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
