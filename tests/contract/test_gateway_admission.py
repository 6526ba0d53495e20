"""Admission before a real engine: the line and its bounds, deadlines, draining, TLS."""

from __future__ import annotations

import json
import signal
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.contract.conftest import Gateway, eventually, running_gateway
from tests.gateway.transport.test_tls import self_signed

if TYPE_CHECKING:
    from conch.triton import TritonServer
    from conch_build.pipeline import BuildResult

LONG = {"prompt": "1, 2, 3,", "max_tokens": 1500, "ignore_eos": True}
SHORT = {"prompt": "1,", "max_tokens": 2}
PLAN = "name: smollm2\nmodel: {checkpoint: sample}\nserving: {gateway: %s}\n"


def plan_with(folder: Path, **gateway: Any) -> str:
    path = folder / "conch.yaml"
    database = {"url": f"sqlite:///{folder}/gateway.db"}
    path.write_text(PLAN % json.dumps({"database": database, **gateway}))
    return str(path)


@pytest.fixture(scope="module")
def narrow(
    stack_triton: TritonServer, sample_build: BuildResult, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    """A gateway that lets one answer be made at once, and two requests wait."""
    queue, limits = {"running": 1, "waiting": 2}, {"request_timeout": "6s"}
    plan = plan_with(tmp_path_factory.mktemp("plan"), queue=queue, limits=limits)
    with running_gateway(stack_triton, sample_build.engine.path, "--plan", plan) as gateway:
        yield gateway


@pytest.fixture(autouse=True)
def idle(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "narrow" in request.fixturenames:
        gateway = request.getfixturevalue("narrow")
        assert eventually(lambda: is_idle(gateway))


def is_idle(gateway: Gateway) -> bool:
    names = ("conch:queue_requests", "conch:queue_tokens", "conch:admitted_answers", "conch:admitted_tokens")
    return not any(gateway.metric(name) for name in (*names, "conch:kv_blocks_used", "vllm:num_requests_running"))


@contextmanager
def busy(gateway: Gateway) -> Iterator[None]:
    """Somebody is being answered."""
    with gateway.http.stream("POST", "/v1/completions", json={**LONG, "stream": True}) as response:
        lines = response.iter_lines()  # kept: without it the connection is closed
        next(lines)
        yield


class Asker(threading.Thread):
    """A request in the background; `done_at` says when its answer was there."""

    def __init__(self, gateway: Gateway, **body: Any) -> None:
        super().__init__(daemon=True)
        self.url = f"{gateway.url}/v1/completions"
        self.body = {**SHORT, **body}
        self.done_at = 0.0
        waiting = gateway.metric("conch:queue_requests")
        self.start()
        assert eventually(lambda: gateway.metric("conch:queue_requests") == waiting + 1)

    def run(self) -> None:
        self.response = httpx.post(self.url, json=self.body, timeout=60, trust_env=False)
        self.done_at = time.monotonic()


@pytest.mark.conforms("ADM-1")
def test_a_full_line_is_a_429_that_says_when_to_come_again(narrow: Gateway) -> None:
    shed = narrow.metric("conch:shed_requests_total", reason="queue_full")
    waits = narrow.metric("vllm:request_queue_time_seconds_count")
    with busy(narrow):
        waiting = [Asker(narrow), Asker(narrow)]
        started = time.monotonic()
        response = narrow.http.post("/v1/completions", json=SHORT)
        assert time.monotonic() - started < 1
        assert response.status_code == 429
        assert response.json()["error"]["code"] == "overloaded"
        assert 1 <= int(response.headers["retry-after"]) <= 60
    for asker in waiting:
        asker.join(20)
        assert asker.response.status_code == 200
    assert narrow.metric("conch:shed_requests_total", reason="queue_full") == shed + 1
    assert narrow.metric("vllm:request_queue_time_seconds_count") == waits + 3


@pytest.mark.conforms("ADM-1", "GEN-11")
def test_priority_goes_first_and_takes_the_place_of_the_last_in_a_full_line(narrow: Gateway) -> None:
    with busy(narrow):
        flex = Asker(narrow, service_tier="flex")
        default = Asker(narrow)
        urgent = threading.Thread(target=lambda: answers.append(narrow.ok("completions", **SHORT, priority=-5)))
        answers: list[Any] = []
        urgent.start()
        flex.join(10)
        assert flex.response.status_code == 429
    urgent.join(20)
    default.join(20)
    assert answers
    assert default.response.status_code == 200


def test_who_leaves_the_line_leaves_nothing(narrow: Gateway) -> None:
    before = narrow.metric("vllm:request_success_total", finished_reason="abort")
    with busy(narrow):
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{narrow.url}/v1/completions", json=SHORT, timeout=0.5, trust_env=False)
        assert eventually(lambda: narrow.metric("conch:queue_requests") == 0, seconds=2)
    assert eventually(lambda: is_idle(narrow))
    assert narrow.metric("vllm:request_success_total", finished_reason="abort") == before + 1  # the one that ran


@pytest.mark.conforms("ADM-2")
def test_a_timeout_of_the_body_ends_a_whole_answer_with_504(narrow: Gateway) -> None:
    started = time.monotonic()
    status, answer = narrow.post("completions", {**LONG, "timeout": 0.5})
    assert (status, answer["error"]["code"]) == (504, "timeout")
    assert 0.5 <= time.monotonic() - started < 2
    assert eventually(lambda: is_idle(narrow), seconds=3)


@pytest.mark.conforms("ADM-2")
@pytest.mark.parametrize("path", ["chat/completions", "responses"])
def test_a_timeout_ends_a_stream_with_an_error_event(narrow: Gateway, path: str) -> None:
    text = {"type": "object", "properties": {"a": {"type": "string", "minLength": 5000}}, "required": ["a"]}
    endless = {"format": {"type": "json_schema", "name": "x", "schema": text}}
    long = {"input": "Count.", "max_output_tokens": 1500, "text": endless} if path == "responses" else None
    body = long or {"messages": [{"role": "user", "content": "Count."}], "max_tokens": 1500, "ignore_eos": True}
    response = narrow.http.post(f"/v1/{path}", json={**body, "stream": True, "timeout": 2})
    assert "timeout" in response.text.split("\n\n")[-3 if path != "responses" else -2]
    assert eventually(lambda: is_idle(narrow), seconds=3)


@pytest.mark.conforms("ADM-2")
def test_the_servers_own_limit_holds_without_one_and_over_a_longer_one(narrow: Gateway) -> None:
    started = time.monotonic()
    status, events = narrow.post("completions", {**LONG, "stream": True, "timeout": 1000})
    assert status == 200
    assert events[-1]["error"]["code"] == "timeout"
    assert 6 <= time.monotonic() - started < 8


@pytest.mark.conforms("ADM-2")
def test_a_request_that_cannot_begin_in_time_is_not_kept(narrow: Gateway) -> None:
    with busy(narrow):
        status, answer = narrow.post("completions", {**SHORT, "timeout": 0.3})
        assert (status, answer["error"]["code"]) in ((504, "timeout"), (503, "deadline_unreachable"))
        assert narrow.metric("conch:queue_requests") == 0


@pytest.mark.conforms("ADM-3")
def test_sigterm_sends_the_line_away_at_once_and_lets_the_running_end(
    stack_triton: TritonServer, sample_build: BuildResult, tmp_path: Path
) -> None:
    plan = plan_with(tmp_path, queue={"running": 1}, limits={"drain_timeout": "2s"})
    with (
        running_gateway(stack_triton, sample_build.engine.path, "--plan", plan) as gateway,
        gateway.http.stream("POST", "/v1/completions", json={**LONG, "stream": True}) as running,
    ):
        lines = running.iter_lines()
        next(lines)
        waiting = Asker(gateway)
        gateway.process.send_signal(signal.SIGTERM)
        signalled = time.monotonic()
        waiting.join(10)
        assert waiting.done_at - signalled < 1
        assert waiting.response.status_code == 503
        assert waiting.response.json()["error"]["code"] == "shutting_down"
        assert waiting.response.headers["retry-after"]
        # The running one outlasts what the plan gives it.
        events = [line.removeprefix("data: ") for line in lines if line]
        assert 1.5 < time.monotonic() - signalled < 4
        assert json.loads(events[-2])["error"]["code"] == "shutting_down"
        assert gateway.process.wait(5) == 0


@pytest.mark.conforms("ADM-4")
def test_with_a_certificate_the_gateway_speaks_tls_and_nothing_else(
    stack_triton: TritonServer, sample_build: BuildResult, tmp_path: Path
) -> None:
    pair = self_signed(tmp_path)
    plan = plan_with(tmp_path, tls=pair.model_dump())
    trusting = ssl.create_default_context(cafile=pair.certificate)
    with (
        running_gateway(stack_triton, sample_build.engine.path, "--plan", plan) as gateway,
        httpx.Client(base_url=gateway.url, verify=trusting, trust_env=False) as http,
        ExitStack() as stack,
    ):
        assert gateway.url.startswith("https://")
        response = stack.enter_context(http.stream("POST", "/v1/completions", json={**SHORT, "stream": True}))
        assert list(response.iter_lines())[-2] == "data: [DONE]"
        with pytest.raises(httpx.HTTPError):
            httpx.get(gateway.url.replace("https", "http"), trust_env=False)
