"""`conch serve`: a plan's engine behind a watched Triton and the gateway, until a signal ends them."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import replace
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

    SIGTERM or Ctrl-C drains: running answers end, new ones are refused. A second one ends at once. SIGUSR2 reads PLAN
    again, builds it, and lets it take over replica by replica; requests do not notice.
    """
    from conch.evaluation import EngineEvaluator
    from conch.hosting import check_engine, hosting_of
    from conch_build.pipeline import build
    from conch_build.plan import load_plan

    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # it would warn of a program started beside its threads
    signal.signal(signal.SIGTERM, _interrupt)  # until the gateway takes over: leave by the same way as Ctrl-C
    loaded = load_plan(plan)
    hosting = hosting_of(loaded)
    built = build(loaded, evaluator=EngineEvaluator(), say=console.note)
    check_engine(loaded, built.engine.path)
    _serve(console, plan, loaded, built, hosting)


def _serve(console: Console, path: Path, plan: Plan, built: BuildResult, hosting: Hosting) -> None:
    from conch.fleet import Fleet, reloads
    from conch.fleet.rolling import server_of
    from conch.gateway.keys.authority import check_place
    from conch.gateway.settings import GatewaySettings, ModelSettings, gateway_home, other_models
    from conch.gateway.transport.server import listen, run
    from conch.gateway.transport.tls import context_of
    from conch.gateway.watching.observability import check_told

    started = time.monotonic()
    gateway = plan.serving.gateway
    with contextlib.ExitStack() as stack:
        # What cannot work is found out before a model is loaded for nothing.
        others = other_models(gateway, plan.name)
        context_of(gateway.tls)
        check_told(gateway)
        sock = listen(gateway.host, gateway.port)
        stack.enter_context(sock)
        check_place(sock.getsockname()[0], gateway, gateway_home())
        fleet = Fleet(plan, hosting, console.note)
        stack.callback(fleet.stop)
        fleet.start(built)

        def model(build: BuildResult) -> ModelSettings:
            servers = [server_of(replica) for replica in fleet.replicas]
            settings = ModelSettings.for_engine(
                build.engine.path, servers[fleet.readers :], build.repository.path, tool_format=gateway.tool_format
            )
            if plan.serving.disaggregated is None:
                return settings
            return replace(
                settings,
                context_servers=tuple(servers[: fleet.readers]),
                max_local_prefill_length=plan.serving.disaggregated.max_local_prefill_length,
            )

        settings = GatewaySettings(
            (model(built), *others),
            gateway,
            hourly_usd=plan.cost.instance_hourly_usd,
            membership=reloads(path, fleet, model, console.note),
        )

        def announce(url: str) -> None:
            seconds = time.monotonic() - started
            replicas = [replica.urls for replica in fleet.replicas]
            urls = {"gateway": url}
            for number, told in enumerate(replicas):
                name = f"triton_{number}" if len(replicas) > 1 else "triton"
                urls |= {f"{name}_{port}": address for port, address in told.items()}
            first = {f"triton_{port}": address for port, address in replicas[0].items()}
            width = max(map(len, urls))
            console.note(f"ready in {format_seconds(seconds)}; Ctrl-C stops it")
            console.result(
                {
                    "gateway": url,
                    **first,
                    "replicas": replicas,
                    "model": plan.name,
                    "pid": os.getpid(),
                    "ready_seconds": round(seconds, 3),
                },
                "\n".join(f"{name:<{width}}  {address}" for name, address in urls.items()),
            )

        run(settings, sock, announce)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
