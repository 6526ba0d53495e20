"""When there are traces at all, and what is refused before the gateway starts."""

from __future__ import annotations

import builtins
from typing import Any

import pytest

from conch.gateway.watching.tracing import address_of, check_tracing, is_wanted
from conch_build.errors import SetupError
from conch_build.plan_operation import Tracing

COLLECTOR = Tracing(endpoint="http://127.0.0.1:4318")


@pytest.mark.parametrize(
    ("plan", "environment", "wanted"),
    [
        (Tracing(), {}, False),
        (COLLECTOR, {}, True),
        (Tracing(), {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}, True),
        (Tracing(), {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:4318/v1/traces"}, True),
        (COLLECTOR, {"OTEL_SDK_DISABLED": "true"}, False),
        (COLLECTOR, {"OTEL_TRACES_EXPORTER": "none"}, False),
        (Tracing(capture_content=True), {}, False),
    ],
)
def test_traces_are_off_unless_a_collector_is_named(plan: Tracing, environment: dict[str, str], wanted: bool) -> None:
    assert is_wanted(plan, environment) is wanted


@pytest.mark.parametrize("endpoint", ["localhost:4318", "ftp://host", "http://", "http://host/?key=1"])
def test_an_address_that_is_none_is_refused(endpoint: str) -> None:
    with pytest.raises(ValueError, match="no address of a collector"):
        Tracing(endpoint=endpoint)


def test_a_protocol_that_is_not_spoken_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4317")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    with pytest.raises(SetupError, match=r"`grpc`.*OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/protobuf"):
        check_tracing(Tracing())


def test_without_the_libraries_traces_are_refused_and_their_absence_is_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *rest: Any) -> Any:
        if name.startswith("opentelemetry"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", missing)
    check_tracing(Tracing())
    with pytest.raises(SetupError, match=r"traces need opentelemetry.*\[tracing\]"):
        check_tracing(COLLECTOR)


@pytest.mark.parametrize(
    ("server", "address", "port"),
    [
        ("127.0.0.1:8001", "127.0.0.1", 8001),
        ("[::1]:8001", "::1", 8001),
        ("http://gpu-1:8000/v1", "gpu-1", 8000),
        ("https://gpu-1/v1", "gpu-1", 443),
    ],
)
def test_an_engine_is_named_by_address_and_port(server: str, address: str, port: int) -> None:
    assert address_of(server) == {"server.address": address, "server.port": port}
