"""A running gateway in front of the running Triton, and the real clients that people use against it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import openai
import pytest

from tests.contract.triton_calls import wait_until_idle

if TYPE_CHECKING:
    from conch.triton import TritonServer


@dataclass(frozen=True)
class Gateway:
    """A gateway process, and short ways to ask it."""

    url: str
    process: subprocess.Popen[str]
    http: httpx.Client

    def post(self, path: str, body: Any) -> tuple[int, Any]:
        """(status, body), or (status, events of the stream without the final [DONE])."""
        response = self.http.post(f"/v1/{path}", json=body)
        if "event-stream" not in response.headers["content-type"]:
            return response.status_code, response.json()
        lines = [line[6:] for line in response.text.split("\n") if line.startswith("data: ")]
        assert lines[-1] == "[DONE]"
        return response.status_code, [json.loads(line) for line in lines[:-1]]

    def ok(self, path: str, **body: Any) -> Any:
        status, answer = self.post(path, body)
        assert status == 200, answer
        return answer

    def refused(self, path: str, **body: Any) -> dict[str, Any]:
        """The error object of a request that must be refused with 400, streamed or not."""
        errors = []
        for stream in (False, True):
            status, answer = self.post(path, {**body, "stream": stream})
            assert status == 400, answer
            assert answer["error"].keys() == {"message", "type", "param", "code"}
            errors.append(answer["error"])
        return dict(errors[0])

    def metric(self, name: str, **labels: str) -> float:
        """A sample of /metrics; 0 when there is none."""
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        for sample in re.finditer(r"^([\w:]+)\{(.*?)\} (\S+)$", self.http.get("/metrics").text, re.M):
            if sample[1] == name and all(label in sample[2] for label in wanted):
                return float(sample[3])
        return 0.0

    @property
    def context(self) -> int:
        return int(self.http.get("/v1/models").json()["data"][0]["max_model_len"])


def choices(answer: Any, index: int = 0) -> list[Any]:
    events = answer if isinstance(answer, list) else [answer]
    return [choice for event in events for choice in event["choices"] if choice["index"] == index]


def text_of(answer: Any, index: int = 0) -> str:
    """The whole text of a choice, however it came."""
    parts = []
    for choice in choices(answer, index):
        turn = choice.get("message") or choice.get("delta") or choice
        parts.append(turn.get("text") or turn.get("content") or "")
    return "".join(parts)


def reason_of(answer: Any, index: int = 0) -> str:
    reasons = [choice["finish_reason"] for choice in choices(answer, index) if choice["finish_reason"]]
    assert len(reasons) == 1
    return str(reasons[0])


def eventually(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.1)
    return condition()


@contextmanager
def running_gateway(triton: TritonServer, engine: Path, *options: str) -> Iterator[Gateway]:
    """A gateway process for what `engine.json` in a folder describes."""
    command = [sys.executable, "-m", "conch.gateway", str(engine), "--port", "0", "--json"]
    command += ["--grpc-url", triton.grpc_url, "--metrics-url", triton.metrics_url, *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        stdout = process.stdout
        assert stdout is not None
        lines = iter(lambda: stdout.readline() or "}\n", "}\n")  # also when it has died
        url = json.loads("".join(lines) + "}")["url"]
        try:
            with httpx.Client(base_url=url, timeout=120, trust_env=False) as http:
                yield Gateway(url, process, http)
        finally:
            process.kill()


@pytest.fixture(scope="session")
def url(stack_triton: TritonServer) -> str:
    """Where the running Triton speaks gRPC."""
    return stack_triton.grpc_url


@pytest.fixture
def idle_afterwards(stack_triton: TritonServer) -> Iterator[None]:
    """Every test leaves the engine without a request and without a block in use."""
    yield
    wait_until_idle(stack_triton.metrics_url)


@pytest.fixture(scope="session")
def sdk(gateway: Gateway) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0)


@pytest.fixture
def async_sdk(gateway: Gateway) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0)
