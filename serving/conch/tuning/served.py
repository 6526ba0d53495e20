"""A plan served for a while by `conch serve`, in a process and with a database of its own, on free ports.

What was built for it alone is removed afterwards. The plan that is served lies beside the real one, as paths in it
lead from there, and is gone when it ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import yaml

from conch_build import preflight
from conch_build.errors import ServiceError
from conch_build.pipeline import checked, draft_of
from conch_build.plan import load_plan
from conch_build.stages import Stage
from conch_build.standing import standing_of
from conch_build.store import Store
from conch_build.yaml_edit import REMOVED, edited

_STOP_SECONDS = 60


@dataclass(frozen=True)
class Served:
    url: str
    plan: Path
    """What is served: it has the real one's SLO and price."""


@contextlib.contextmanager
def serving(plan: Path, text: str, store: Store, folder: Path, *, keep: bool = False) -> Iterator[Served]:
    """`text`: the plan to serve; `folder`: for its database and log; `keep`: what is built for it stays.

    Raises CheckError for a plan that cannot work, ServiceError for one that does not start.
    """
    own = plan.with_name(f".{plan.stem}-tuning-{os.getpid()}.yaml")
    own.write_text(alone(text, folder), encoding="utf-8")
    try:
        loaded = load_plan(own)
        preflight.raise_for(preflight.check(loaded))
        checkpoint = checked(loaded, None, lambda text: None)
        standing = standing_of(loaded, store, checkpoint, draft_of(loaded, None, lambda text: None))
        new = [stage for stage in (standing.repository, standing.engine) if stage.found(store) is None]
        try:
            with _process(own, folder) as url:
                yield Served(url, own)
        finally:
            for stage in () if keep else new:
                _remove(stage, store)
    finally:
        own.unlink(missing_ok=True)


def alone(text: str, folder: Path) -> str:
    """The plan for a gateway that nobody else knows, keeps nothing, and is not judged anew."""
    data: dict[str, Any] = yaml.safe_load(text)
    gateway = (data.get("serving") or {}).get("gateway") or {}
    kept = {name: gateway[name] for name in ("queue", "limits", "tool_format") if name in gateway}
    database = {"url": f"sqlite:///{(folder / 'gateway.db').absolute()}"}
    changes: dict[tuple[str, ...], Any] = {
        ("serving", "triton", port): 0 for port in ("http_port", "grpc_port", "metrics_port")
    }
    changes["serving", "gateway"] = {**kept, "host": "127.0.0.1", "port": 0, "database": database}
    if "quality" in data:
        changes["quality",] = REMOVED
    return edited(text, changes)[0]


@contextlib.contextmanager
def _process(plan: Path, folder: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "conch.tuning.server", str(os.getpid()), str(plan), "--json"]
    with (
        TemporaryFile(dir=folder) as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True) as process,
    ):
        try:
            yield _address(process)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


def _address(process: subprocess.Popen[str]) -> str:
    """What it prints once it is ready, or what it says instead."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.rstrip() == "}":
            break
    try:
        told: dict[str, Any] = json.loads("".join(lines))
    except ValueError:
        raise ServiceError("it ended and said nothing", where="conch serve") from None
    if "gateway" not in told:
        raise ServiceError(f"does not start: {told.get('what', 'no reason given')}", where="conch serve")
    return str(told["gateway"])


def _remove(stage: Stage, store: Store) -> None:
    artifact = stage.found(store)
    if artifact is not None:
        store.remove(artifact)
