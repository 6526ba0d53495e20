"""OpenTelemetry traces of requests, by the gen_ai conventions, sent over OTLP/HTTP. Off unless configured.

Three spans a request: the HTTP request, its wait in the gateway's queue, and what the engine did, with an event at the
first token. They are made when the request is over, so that a token costs nothing. Prompts are left out unless the plan
asks for them; answers always are.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from conch.gateway.errors import kind_of
from conch.gateway.exchange import Exchange
from conch.gateway.protocol import ChatRequest, CompletionRequest
from conch.gateway.watching.record import Record, servers_of
from conch_build.errors import SetupError
from conch_build.extras import pip_install
from conch_build.plan_operation import Tracing

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span

_NAME = "conch-gateway"
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")


def is_wanted(plan: Tracing, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether plan or environment name a collector, and the environment does not forbid it."""
    forbidden = environment.get("OTEL_SDK_DISABLED", "").lower() == "true"
    forbidden = forbidden or environment.get("OTEL_TRACES_EXPORTER") == "none"
    return not forbidden and bool(plan.endpoint or any(environment.get(name) for name in _ENDPOINTS))


def check_tracing(plan: Tracing) -> None:
    """Raises SetupError where OpenTelemetry is wanted and not installed, or is to speak what it cannot."""
    if not is_wanted(plan):
        return
    protocol = next((os.environ[name] for name in _PROTOCOLS if os.environ.get(name)), "http/protobuf")
    if plan.endpoint is None and protocol != "http/protobuf":
        fix = f"Set {_PROTOCOLS[0]}=http/protobuf and the collector's HTTP port, or OTEL_TRACES_EXPORTER=none."
        raise SetupError(f"traces cannot be sent by `{protocol}`", fix=fix)
    try:
        import opentelemetry.exporter.otlp.proto.http.trace_exporter
        import opentelemetry.sdk.trace  # noqa: F401
    except ImportError as error:
        fix = f"Run {pip_install('tracing')}, or set OTEL_TRACES_EXPORTER=none."
        raise SetupError(f"traces need {error.name}", where="serving.gateway.tracing", fix=fix) from None


class Traces:
    """A teller of spans. `check_tracing` has said that it can be."""

    def __init__(self, plan: Tracing) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        resource = Resource.create({"service.version": version("conch")})
        if str(resource.attributes["service.name"]).startswith("unknown_service"):
            resource = resource.merge(Resource({"service.name": _NAME}))
        url = f"{plan.endpoint.rstrip('/')}/v1/traces" if plan.endpoint else None
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=url)))
        self._tracer = self._provider.get_tracer(_NAME, version("conch"))
        self._propagator = TraceContextTextMapPropagator()
        self._with_content = plan.capture_content

    def close(self) -> None:
        """Send what waits. May take seconds where the collector does not answer."""
        self._provider.shutdown()

    def __call__(self, record: Record) -> None:
        from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context

        if record.is_a_look:
            return
        clock, exchange = _Clock(), record.exchange
        span = self._tracer.start_span(
            f"{record.scope['method']} {record.route or ''}".rstrip(),
            self._propagator.extract(_trace_headers(Headers(scope=record.scope))),
            SpanKind.SERVER,
            start_time=clock.at(record.began_at),
            attributes=_of_http(record),
        )
        failed = exchange is not None and exchange.error is not None and exchange.error.http_status >= 500
        if record.status >= 500 or failed:
            span.set_status(Status(StatusCode.ERROR))
        if exchange is not None and span.is_recording():
            self._queue_and_engine(exchange, set_span_in_context(span), clock, record.ended_at)
        span.end(clock.at(record.ended_at))

    def _queue_and_engine(self, exchange: Exchange, parent: Context, clock: _Clock, over_at: float) -> None:
        from opentelemetry.trace import SpanKind, Status, StatusCode

        ended_at = exchange.ended_at or over_at
        queue = self._tracer.start_span("queue", parent, start_time=clock.at(exchange.began_at))
        queue.end(clock.at(exchange.started_at or ended_at))
        if exchange.started_at is None:
            return
        engine: Span = self._tracer.start_span(
            f"{_operation(exchange)} {exchange.model}",
            parent,
            SpanKind.CLIENT,
            start_time=clock.at(exchange.started_at),
            attributes=_of_request(exchange) | _of_answers(exchange),
        )
        if self._with_content:
            engine.set_attribute("gen_ai.input.messages", json.dumps(_messages(exchange), ensure_ascii=False))
        if exchange.first_token_at is not None:
            engine.add_event("first_token", timestamp=clock.at(exchange.first_token_at))
        if exchange.error is not None:
            engine.set_attribute("error.type", kind_of(exchange.error))
            engine.set_status(Status(StatusCode.ERROR))
        engine.end(clock.at(ended_at))


class _Clock:
    """From `time.perf_counter` to nanoseconds since 1970."""

    def __init__(self) -> None:
        self._offset = time.time() - time.perf_counter()

    def at(self, seconds: float) -> int:
        return int((self._offset + seconds) * 1e9)


def _trace_headers(headers: Headers) -> dict[str, str]:
    """The caller's trace, by W3C's two headers."""
    return {name: headers[name] for name in ("traceparent", "tracestate") if name in headers}


def _of_http(record: Record) -> dict[str, Any]:
    scope = record.scope
    attributes = {
        "http.request.method": scope["method"],
        "http.response.status_code": record.status,
        "url.path": scope["path"],
        "url.scheme": scope["scheme"],
        "http.response.header.x-request-id": [record.request_id],
    }
    if record.route is not None:
        attributes["http.route"] = record.route
    if scope.get("client"):
        attributes["client.address"] = scope["client"][0]
    if record.status >= 500:
        attributes["error.type"] = str(record.status)
    return attributes


def _operation(exchange: Exchange) -> str:
    return "text_completion" if exchange.endpoint == "completions" else "chat"


def _of_request(exchange: Exchange) -> dict[str, Any]:
    body = exchange.body
    attributes = {
        "gen_ai.operation.name": _operation(exchange),
        "gen_ai.provider.name": "conch",
        "gen_ai.output.type": "text",
        "gen_ai.request.model": exchange.model,
        "gen_ai.request.stream": exchange.streaming,
        "gen_ai.request.temperature": body.temperature,
        "gen_ai.request.top_p": body.top_p,
        "gen_ai.request.frequency_penalty": body.frequency_penalty,
        "gen_ai.request.presence_penalty": body.presence_penalty,
    }
    optional = {
        "gen_ai.request.max_tokens": body.max_tokens,
        "gen_ai.request.choice.count": body.n if body.n != 1 else None,
        "gen_ai.request.seed": body.seed,
        "gen_ai.request.top_k": float(body.top_k) if body.top_k > 0 else None,
    }
    return attributes | {name: value for name, value in optional.items() if value is not None}


def _of_answers(exchange: Exchange) -> dict[str, Any]:
    answers = exchange.answers
    attributes: dict[str, Any] = {
        "gen_ai.response.model": exchange.body.model or exchange.served.name,
        "gen_ai.usage.input_tokens": exchange.prompt_tokens,
        "gen_ai.usage.output_tokens": sum(answer.completion_tokens for answer in answers),
        "gen_ai.usage.cache_read.input_tokens": sum(answer.cached_tokens for answer in answers),
        "gen_ai.response.finish_reasons": [answer.finish_reason for answer in answers if answer.finish_reason],
    }
    if exchange.answer_id:
        attributes["gen_ai.response.id"] = exchange.answer_id
    if exchange.reasoning_tokens:
        attributes["gen_ai.usage.reasoning.output_tokens"] = exchange.reasoning_tokens
    if exchange.streaming and exchange.first_token_at is not None:
        attributes["gen_ai.response.time_to_first_chunk"] = exchange.first_token_at - exchange.began_at
    if exchange.chosen is not None:
        attributes["conch.experiment"] = exchange.chosen.experiment
        attributes["conch.variant"] = exchange.chosen.variant
    for server in servers_of(exchange)[:1]:
        attributes |= address_of(server)
    return attributes


def address_of(server: str) -> dict[str, Any]:
    """Of `host:port` or of a URL."""
    url = urlsplit(server if "//" in server else f"//{server}")
    port = url.port or (443 if url.scheme == "https" else 80)
    return {"server.address": url.hostname or server, "server.port": port}


def _messages(exchange: Exchange) -> list[dict[str, Any]]:
    """The prompts in the conventions' shape; ids are no text."""
    body = exchange.body
    turns: list[tuple[str, str]] = []
    if isinstance(body, ChatRequest):
        turns = [(message.role, message.content or "") for message in body.messages]
    elif isinstance(body, CompletionRequest):
        turns = [("user", prompt) for prompt in body.prompt if isinstance(prompt, str)]
    return [{"role": role, "parts": [{"type": "text", "content": text}]} for role, text in turns]
