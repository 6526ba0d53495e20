"""Two Tritons of one model, and another gateway as an OpenAI server: shared out, failed over, relayed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import openai
import pytest

from tests.conftest import triton_over
from tests.contract.conftest import Gateway, eventually, reason_of, text_of

if TYPE_CHECKING:
    from conch.triton import TritonServer
    from conch_build.pipeline import BuildResult

HELLO = [{"role": "user", "content": "Count from one to ten."}]


@contextmanager
def gateway_of(plan: Path) -> Iterator[Gateway]:
    """`conch gateway PLAN` as a process."""
    command = [sys.executable, "-m", "conch.cli", "gateway", str(plan), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = json.loads("".join(iter(process.stdout.readline, "}\n")) + "}")["url"]
        try:
            with httpx.Client(base_url=url, timeout=120, trust_env=False) as http:
                yield Gateway(url, process, http)
        finally:
            process.kill()


@pytest.fixture(scope="module")
def second(sample_build: BuildResult, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    with triton_over(sample_build.repository.path, tmp_path_factory.mktemp("second")) as server:
        yield server


@pytest.fixture(scope="module")
def routing(
    stack_triton: TritonServer,
    second: TritonServer,
    gateway: Gateway,
    sample_build: BuildResult,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Gateway]:
    """A gateway before both Tritons (`pair`), before another gateway (`relayed`), and before nobody (`nobody`)."""
    folder = tmp_path_factory.mktemp("routing")
    servers = [f"{{grpc: '{triton.grpc_url}', metrics: '{triton.metrics_url}'}}" for triton in (stack_triton, second)]
    plan = folder / "conch.yaml"
    plan.write_text(
        f"""
name: router
model: {{checkpoint: sample}}
serving:
  gateway:
    port: 0
    database: {{url: 'sqlite:///{folder / "gateway.db"}'}}
    models:
      pair: {{engine: '{sample_build.engine.path}', servers: [{", ".join(servers)}]}}
      relayed: {{servers: [{{openai: '{gateway.url}/v1', model: smollm2}}]}}
      nobody: {{servers: [{{openai: 'http://127.0.0.1:9/v1'}}]}}
    experiments:
      risky:
        variants: {{old: {{model: pair}}, new: {{model: nobody}}}}
        guard: {{failures_in_a_row: 3}}
"""
    )
    with gateway_of(plan) as running:
        yield running


def requests_at(routing: Gateway, server: str) -> float:
    return routing.metric("conch:upstream_requests_total", server=server)


@pytest.mark.conforms("ROUTE-1")
def test_requests_are_shared_out_and_a_known_prefix_is_gone_back_to(
    routing: Gateway, stack_triton: TritonServer, second: TritonServer
) -> None:
    urls = (stack_triton.grpc_url, second.grpc_url)
    for number in range(6):
        routing.ok("completions", model="pair", prompt=f"{number} is a number", max_tokens=2)
    assert all(requests_at(routing, url) >= 2 for url in urls)
    text = "The lighthouse keeper wrote down every ship that passed. " * 12
    before = [requests_at(routing, url) for url in urls]
    answers = [routing.ok("completions", model="pair", prompt=text, max_tokens=2) for _ in range(4)]
    after = [requests_at(routing, url) for url in urls]
    assert sorted(new - old for new, old in zip(after, before, strict=True)) == [0, 4]
    assert answers[3]["usage"]["prompt_tokens_details"]["cached_tokens"] >= 64


@pytest.mark.conforms("ROUTE-3")
def test_a_relayed_model_answers_as_the_server_behind_it_does(routing: Gateway, gateway: Gateway) -> None:
    body: dict[str, Any] = {"messages": HELLO, "max_tokens": 12, "temperature": 0, "seed": 1}
    ours = gateway.ok("chat/completions", **body)
    for stream in (False, True):
        relayed = routing.ok("chat/completions", model="relayed", stream=stream, **body)
        assert text_of(relayed) == text_of(ours)
        assert reason_of(relayed) == "length"
        first = relayed[0] if stream else relayed
        assert first["model"] == "relayed"
        assert stream or relayed["usage"]["completion_tokens"] == 12
    with_usage = routing.ok(
        "chat/completions", model="relayed", stream=True, stream_options={"include_usage": True}, **body
    )
    assert with_usage[-1]["usage"]["completion_tokens"] == 12
    text = {"prompt": "One, two, three,", "max_tokens": 4, "temperature": 0}
    assert text_of(routing.ok("completions", model="relayed", **text)) == text_of(gateway.ok("completions", **text))
    usage = routing.http.get("/metrics").text
    assert 'vllm:generation_tokens_total{model_name="relayed"' in usage


@pytest.mark.conforms("ROUTE-3")
def test_a_relayed_request_is_checked_before_it_is_passed_on(routing: Gateway) -> None:
    for stream in (False, True):
        wrong = {"model": "relayed", "messages": HELLO, "temperature": 9, "stream": stream}
        status, answer = routing.post("chat/completions", wrong)
        assert (status, answer["error"]["param"]) == (400, "temperature")
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
    chosen = {"type": "function", "function": {"name": "look"}}
    answer = routing.ok("chat/completions", model="relayed", messages=HELLO, tools=[tool], tool_choice=chosen)
    assert answer["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "look"
    status, answer = routing.post("responses", {"model": "relayed", "input": "hello"})
    assert (status, answer["error"]["code"]) == (400, "unsupported_model")
    refused = routing.http.post("/tokenize", json={"model": "relayed", "prompt": "hello"})
    assert refused.json()["error"]["code"] == "unsupported_model"


def test_a_client_that_leaves_a_relayed_stream_ends_it_in_the_engine(routing: Gateway, gateway: Gateway) -> None:
    before = gateway.metric("vllm:request_success_total", finished_reason="abort")
    sdk = openai.OpenAI(base_url=f"{routing.url}/v1", api_key="none", max_retries=0)
    stream = sdk.chat.completions.create(
        model="relayed", messages=[{"role": "user", "content": "Tell a long story."}], max_tokens=1000, stream=True
    )
    next(iter(stream))
    stream.close()
    assert eventually(lambda: gateway.metric("vllm:request_success_total", finished_reason="abort") == before + 1)


@pytest.mark.conforms("AB-5")
def test_a_variant_that_fails_gets_no_more_requests(routing: Gateway) -> None:
    statuses = [
        routing.post("chat/completions", {"model": "risky", "messages": HELLO, "max_tokens": 1, "user": str(user)})[0]
        for user in range(24)
    ]
    assert statuses.count(503) == 3
    assert set(statuses[-8:]) == {200}


@pytest.mark.slow
@pytest.mark.conforms("ROUTE-2")
def test_when_a_server_dies_only_what_it_had_begun_is_lost(
    routing: Gateway, sample_build: BuildResult, second: TritonServer
) -> None:
    statuses: list[str] = []
    stop = threading.Event()

    def load(name: int) -> None:
        number = 0
        while not stop.is_set():
            number += 1
            body = {"model": "pair", "prompt": f"{name}: {number} ships", "max_tokens": 24, "stream": True}
            status, answer = routing.post("completions", body)
            failed = status != 200 or any("error" in event for event in answer)
            begun = status == 200 and any(event.get("choices") and event["choices"][0]["text"] for event in answer)
            statuses.append("ok" if not failed else "broken off" if begun else "refused")

    threads = [threading.Thread(target=load, args=(name,)) for name in range(6)]
    for thread in threads:
        thread.start()
    time.sleep(3)
    os.kill(second.pid, signal.SIGKILL)
    gone = time.monotonic()
    assert eventually(lambda: routing.metric("conch:upstream_up", server=second.grpc_url) == 0, 5)
    assert time.monotonic() - gone < 5
    time.sleep(3)
    stop.set()
    for thread in threads:
        thread.join()
    assert statuses.count("refused") == 0
    assert statuses.count("broken off") <= 6
    assert statuses.count("ok") >= 10
    assert eventually(lambda: routing.metric("conch:upstream_up", server=second.grpc_url) == 1, 60), "it is back"
