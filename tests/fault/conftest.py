"""A stack that may be broken: a Triton of its own, and gateways before it; what must be as it was afterwards."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import psutil
import pytest

from tests.conftest import running_triton
from tests.contract.conftest import Gateway, eventually, running_gateway

if TYPE_CHECKING:
    from conch.triton import TritonServer
    from conch_build.pipeline import BuildResult

LONG = {"prompt": "1, 2, 3,", "max_tokens": 1500, "ignore_eos": True, "stream": True}
SHORT = {"prompt": "1,", "max_tokens": 2, "temperature": 0}
PLAN = "name: smollm2\nmodel: {checkpoint: sample}\nserving: {gateway: %s}\n"

NewGateway = Callable[..., AbstractContextManager[Gateway]]


@pytest.fixture(scope="module")
def triton(sample_build: BuildResult, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    """A Triton that nobody else needs."""
    with running_triton(sample_build, tmp_path_factory.mktemp("fault")) as server:
        yield server


@pytest.fixture
def new_gateway(triton: TritonServer, sample_build: BuildResult, tmp_path: Path) -> NewGateway:
    """Starts a gateway before that Triton, with such a `serving.gateway` in its plan."""

    @contextmanager
    def starting(**plan: Any) -> Iterator[Gateway]:
        path = tmp_path / "conch.yaml"
        database = {"url": f"sqlite:///{tmp_path}/gateway.db"}
        path.write_text(PLAN % json.dumps({"database": database, **plan}))
        with running_gateway(triton, sample_build.engine.path, "--plan", str(path)) as gateway:
            gateway.ok("completions", **SHORT)
            yield gateway

    return starting


class Stream(threading.Thread):
    """Reads one answer to its end, whatever that is."""

    def __init__(self, gateway: Gateway, **body: Any) -> None:
        super().__init__(daemon=True)
        self.body = {**LONG, **body}
        self.url = f"{gateway.url}/v1/completions"
        self.events: list[str] = []
        self.failure: httpx.HTTPError | None = None
        self.ended_at = 0.0
        self.start()

    def run(self) -> None:
        try:
            with httpx.stream("POST", self.url, json=self.body, timeout=60, trust_env=False) as response:
                for line in response.iter_lines():
                    if line.startswith("data: "):
                        self.events.append(line[6:])
        except httpx.HTTPError as failure:
            self.failure = failure
        self.ended_at = time.monotonic()


@dataclass(frozen=True)
class Footprint:
    """What a process holds."""

    files: int
    threads: int
    bytes: int

    @classmethod
    def of(cls, gateway: Gateway) -> Footprint:
        process = psutil.Process(gateway.process.pid)
        return cls(process.num_fds(), process.num_threads(), process.memory_info().rss)


def is_idle(gateway: Gateway) -> bool:
    """Nothing waits, nothing runs, no block is held."""
    names = ("conch:queue_requests", "conch:admitted_answers", "vllm:num_requests_running", "conch:kv_blocks_used")
    return not any(gateway.metric(name) for name in names)


def settles(gateway: Gateway, before: Footprint, *, more_bytes: int) -> bool:
    """Back to the baseline: nothing runs, and nothing has been kept."""

    def is_back() -> bool:
        now = Footprint.of(gateway)
        return is_idle(gateway) and now.files <= before.files + 2 and now.bytes < before.bytes + more_bytes

    return eventually(is_back, seconds=15)
