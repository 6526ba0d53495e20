"""Traces of a running gateway, as a collector gets them over OTLP/HTTP."""

from __future__ import annotations

import gzip
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import SAMPLE_PLAN
from tests.contract.conftest import Gateway, eventually, running_gateway

if TYPE_CHECKING:
    from opentelemetry.proto.trace.v1.trace_pb2 import Span

    from conch.triton import TritonServer
    from conch_build.pipeline import BuildResult

pytest.importorskip("opentelemetry.proto")

SECRET = "the secret of the prompt"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
CALLER = "00f067aa0ba902b7"


class Collector:
    """Takes what OpenTelemetry's exporters send."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.resources: list[dict[str, Any]] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

                assert self.path == "/v1/traces"
                body = self.rfile.read(int(self.headers["content-length"]))
                body = gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body
                for part in ExportTraceServiceRequest.FromString(body).resource_spans:
                    collector.resources.append(attributes(part.resource))
                    collector.spans += [span for scope in part.scope_spans for span in scope.spans]
                self.send_response(200)
                self.end_headers()

            def log_message(self, *words: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def trace(self, count: int = 3) -> dict[str, Span]:
        """The spans that came, by the first word of their names; then there are none."""
        assert eventually(lambda: len(self.spans) >= count, 15)
        spans = {span.name.split()[0]: span for span in self.spans}
        assert len(spans) == len(self.spans) == count
        self.spans.clear()
        return spans


def attributes(holder: Any) -> dict[str, Any]:
    def plain(value: Any) -> Any:
        kind = value.WhichOneof("value")
        found = getattr(value, kind)
        return [plain(item) for item in found.values] if kind == "array_value" else found

    return {item.key: plain(item.value) for item in holder.attributes}


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.close()


@pytest.fixture(scope="module")
def traced(
    stack_triton: TritonServer,
    sample_build: BuildResult,
    collector: Collector,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Gateway]:
    plan = tmp_path_factory.mktemp("plan") / "conch.yaml"
    plan.write_text(f"{SAMPLE_PLAN}\nserving: {{gateway: {{tracing: {{endpoint: {collector.url}}}}}}}\n")
    with (
        environment(OTEL_BSP_SCHEDULE_DELAY="200"),
        running_gateway(stack_triton, sample_build.engine.path, "--plan", str(plan)) as gateway,
    ):
        yield gateway


@contextmanager
def environment(**variables: str) -> Iterator[None]:
    """For the processes that are started in the block."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        yield


@pytest.mark.conforms("OBS-4")
def test_a_stream_is_three_spans_in_the_callers_trace(traced: Gateway, collector: Collector) -> None:
    body = {"messages": [{"role": "user", "content": SECRET}], "max_tokens": 5, "stream": True, "seed": 7}
    headers = {"traceparent": f"00-{TRACE}-{CALLER}-01", "x-request-id": "mine"}
    traced.http.post("/v1/chat/completions", json=body, headers=headers)
    spans = collector.trace()
    request, queue, engine = spans["POST"], spans["queue"], spans["chat"]
    assert {span.trace_id.hex() for span in spans.values()} == {TRACE}
    assert request.parent_span_id.hex() == CALLER
    assert queue.parent_span_id == engine.parent_span_id == request.span_id
    assert (request.name, engine.name) == ("POST /v1/chat/completions", "chat smollm2")
    assert (request.kind, engine.kind) == (request.SPAN_KIND_SERVER, request.SPAN_KIND_CLIENT)
    ((name, first),) = [(event.name, event.time_unix_nano) for event in engine.events]
    assert name == "first_token"
    assert (
        request.start_time_unix_nano
        <= queue.start_time_unix_nano
        <= queue.end_time_unix_nano
        <= engine.start_time_unix_nano
        < first
        < engine.end_time_unix_nano
        <= request.end_time_unix_nano
    )
    told = attributes(engine)
    assert told["gen_ai.operation.name"] == "chat"
    assert told["gen_ai.request.model"] == told["gen_ai.response.model"] == "smollm2"
    assert told["gen_ai.usage.output_tokens"] == 5
    assert told["gen_ai.usage.input_tokens"] > 0
    assert told["gen_ai.request.seed"] == 7
    assert told["gen_ai.response.id"].startswith("chatcmpl-")
    assert told["gen_ai.response.finish_reasons"] == ["length"]
    assert told["server.address"] == "127.0.0.1"
    assert 0 < told["gen_ai.response.time_to_first_chunk"] < 60
    http = attributes(request)
    assert (http["http.route"], http["http.response.status_code"]) == ("/v1/chat/completions", 200)
    assert http["http.response.header.x-request-id"] == ["mine"]
    assert collector.resources[-1]["service.name"] == "conch-gateway"
    assert SECRET not in str(spans)


def test_a_refused_request_is_told_of_and_a_look_is_not(traced: Gateway, collector: Collector) -> None:
    traced.http.get("/health/ready")
    traced.http.get("/metrics")
    traced.http.post("/v1/completions", json={"prompt": "a", "model": "nobody"})
    spans = collector.trace(1)
    assert attributes(spans["POST"])["http.response.status_code"] == 404


def test_a_caller_that_does_not_want_a_trace_gets_none(traced: Gateway, collector: Collector) -> None:
    off = {"traceparent": f"00-{TRACE}-{CALLER}-00"}
    traced.http.post("/v1/completions", json={"prompt": "a", "max_tokens": 1}, headers=off)
    traced.http.post("/v1/completions", json={"prompt": "a", "max_tokens": 1}, headers={"traceparent": "nonsense"})
    assert TRACE not in {span.trace_id.hex() for span in collector.trace().values()}


@pytest.mark.conforms("OBS-4")
def test_the_environment_configures_it_and_content_is_a_choice_of_the_plan(
    stack_triton: TritonServer, sample_build: BuildResult, collector: Collector, tmp_path: Path
) -> None:
    plan = tmp_path / "conch.yaml"
    plan.write_text(f"{SAMPLE_PLAN}\nserving: {{gateway: {{tracing: {{capture_content: true}}}}}}\n")
    with (
        environment(OTEL_EXPORTER_OTLP_ENDPOINT=collector.url, OTEL_SERVICE_NAME="my-models"),
        running_gateway(stack_triton, sample_build.engine.path, "--plan", str(plan)) as gateway,
    ):
        gateway.ok("completions", prompt=SECRET, max_tokens=2)
        told = attributes(collector.trace()["text_completion"])
    assert json.loads(told["gen_ai.input.messages"]) == [
        {"role": "user", "parts": [{"type": "text", "content": SECRET}]}
    ]
    assert collector.resources[-1]["service.name"] == "my-models"


def test_the_last_spans_are_sent_before_the_end(
    stack_triton: TritonServer, sample_build: BuildResult, collector: Collector
) -> None:
    with (
        environment(OTEL_EXPORTER_OTLP_ENDPOINT=collector.url, OTEL_BSP_SCHEDULE_DELAY="600000"),
        running_gateway(stack_triton, sample_build.engine.path) as gateway,
    ):
        gateway.ok("completions", prompt="a", max_tokens=2)
        gateway.process.terminate()
        assert gateway.process.wait(10) == 0
    collector.trace()


def test_a_collector_that_is_not_there_delays_neither_answers_nor_the_end(
    stack_triton: TritonServer, sample_build: BuildResult
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections, and never answers
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with (
            environment(OTEL_EXPORTER_OTLP_ENDPOINT=url, OTEL_BSP_SCHEDULE_DELAY="200"),
            running_gateway(stack_triton, sample_build.engine.path) as gateway,
        ):
            for _ in range(3):
                gateway.ok("completions", prompt="a", max_tokens=2)
            time.sleep(0.5)
            started = time.monotonic()
            gateway.process.terminate()
            assert gateway.process.wait(30) == 0
            assert time.monotonic() - started < 8
