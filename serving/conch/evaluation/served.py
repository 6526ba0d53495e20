"""The engine of a plan behind Triton and a gateway of its own, asked by URL: how engines on GPUs are judged."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from conch.evaluation.remote import ServedSubject
from conch.hosting import check_engine, hosting_of
from conch.triton import TritonServer
from conch_build.errors import ServiceError
from conch_build.files import home
from conch_build.pipeline import build
from conch_build.plan import Plan
from conch_build.plan_quality import Quality
from conch_build.stages import Say
from conch_build.store import Store


@contextmanager
def served(plan: Plan, store: Store, say: Say) -> Iterator[ServedSubject]:
    """The engine of `plan`, which is in `store`, on free ports. Raises SetupError or ServiceError."""
    hosting = hosting_of(plan)
    built = build(plan.model_copy(update={"quality": Quality()}), store)
    check_engine(plan, built.engine.path)
    say(f"quality     serving {built.engine.label}")
    logs = home() / "logs"
    with ExitStack() as stack:
        for artifact in built.artifacts:
            stack.enter_context(artifact.hold())
        run_folder = Path(stack.enter_context(TemporaryDirectory()))
        log = logs / f"{plan.name}-quality-triton.log"
        triton = TritonServer(
            built.repository.path,
            http_port=0,
            grpc_port=0,
            metrics_port=0,
            log_path=log,
            run_folder=run_folder,
            **vars(hosting),
        )
        stack.callback(triton.stop)
        triton.start()
        url = stack.enter_context(_gateway(triton, built.engine.path, logs / f"{plan.name}-quality-gateway.log"))
        yield ServedSubject(url)


@contextmanager
def _gateway(triton: TritonServer, engine: Path, log: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "conch.gateway", str(engine), "--port", "0", "--json"]
    command += ["--grpc-url", triton.grpc_url, "--metrics-url", triton.metrics_url]
    with log.open("ab") as errors, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors) as process:
        assert process.stdout is not None
        try:
            said = b"".join(iter(process.stdout.readline, b"}\n")) + b"}"
            url = json.loads(said).get("url") if said.startswith(b"{") and process.poll() is None else None
            if url is None:
                raise ServiceError("the gateway did not start", where=str(log))
            yield str(url)
        finally:
            process.terminate()
