"""Health, readiness by inference, and an orderly end."""

from __future__ import annotations

import json
import signal
import threading
from typing import TYPE_CHECKING, Any

import httpx

from tests.contract.conftest import Gateway, eventually, running_gateway

if TYPE_CHECKING:
    from conch.triton import TritonServer
    from conch_build.pipeline import BuildResult

LONG = {"prompt": "1,", "max_tokens": 150, "ignore_eos": True, "stream": True}


class Reader(threading.Thread):
    """Reads one stream to its end in the background."""

    def __init__(self, gateway: Gateway, **body: Any) -> None:
        super().__init__(daemon=True)
        self.events: list[str] = []
        self.gateway = gateway
        self.body = {**LONG, **body}
        self.start()
        assert eventually(lambda: len(self.events) > 5)

    def run(self) -> None:
        url = f"{self.gateway.url}/v1/completions"
        with httpx.stream("POST", url, json=self.body, timeout=60, trust_env=False) as response:
            for line in response.iter_lines():
                if line:
                    self.events.append(line.removeprefix("data: "))


def test_the_gateway_is_live_ready_and_has_a_version(gateway: Gateway) -> None:
    for path in ("/health", "/health/live", "/health/ready", "/version", "/metrics"):
        assert gateway.http.get(path).status_code == 200
    assert gateway.metric("conch:kv_blocks") > 0


def test_a_gateway_without_an_engine_is_live_but_not_ready(
    stack_triton: TritonServer, sample_build: BuildResult
) -> None:
    with running_gateway(stack_triton, sample_build.engine.path, "--grpc-url", "127.0.0.1:9") as gateway:
        assert gateway.http.get("/health/live").status_code == 200
        assert gateway.http.get("/health/ready").status_code == 503
        response = gateway.http.post("/v1/completions", json={"prompt": "a"})
        assert response.status_code == 503
        assert response.headers["retry-after"]
        assert "127.0.0.1" not in response.text


def test_sigterm_lets_running_streams_finish_and_refuses_new_ones(
    stack_triton: TritonServer, sample_build: BuildResult
) -> None:
    with running_gateway(stack_triton, sample_build.engine.path) as gateway:
        stream = Reader(gateway)
        gateway.process.send_signal(signal.SIGTERM)
        assert eventually(lambda: gateway.http.get("/health/ready").status_code == 503, seconds=2)
        response = gateway.http.post("/v1/completions", json={"prompt": "a"})
        assert (response.status_code, "retry-after" in response.headers) == (503, True)
        stream.join(60)
        assert stream.events[-1] == "[DONE]"
        assert json.loads(stream.events[-2])["choices"][0]["finish_reason"] == "length"
        assert gateway.process.wait(10) == 0


def test_a_second_signal_ends_streams_with_an_error_event(
    stack_triton: TritonServer, sample_build: BuildResult
) -> None:
    with running_gateway(stack_triton, sample_build.engine.path) as gateway:
        stream = Reader(gateway, max_tokens=1500)
        gateway.process.send_signal(signal.SIGTERM)
        assert eventually(lambda: gateway.http.get("/health/ready").status_code == 503, seconds=2)
        gateway.process.send_signal(signal.SIGTERM)
        stream.join(10)
        assert stream.events[-1] == "[DONE]"
        assert json.loads(stream.events[-2])["error"]["code"] == "shutting_down"
        assert gateway.process.wait(10) == 0
