"""The description of the API: committed, true, and survived by the gateway whatever is made up from it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import ROOT
from tests.contract.conftest import Gateway

schemathesis = pytest.importorskip("schemathesis", reason="not for this version of Python")

COMMITTED = json.loads((ROOT / "serving" / "openapi.json").read_text(encoding="utf-8"))
SCHEMA = schemathesis.openapi.from_dict(COMMITTED)
PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/batches", "/tokenize", "/detokenize")


@pytest.mark.conforms("API-1")
def test_the_committed_description_is_the_gateways(gateway: Gateway) -> None:
    """After a change: `curl -s http://127.0.0.1:8080/openapi.json | python -m json.tool > serving/openapi.json`."""
    assert gateway.http.get("/openapi.json").json() == COMMITTED


@pytest.mark.slow
@pytest.mark.conforms("API-1", "REQ-7")
@pytest.mark.parametrize("path", PATHS)
def test_what_is_made_up_from_it_is_answered_as_it_says(gateway: Gateway, path: str) -> None:
    operation = SCHEMA[path]["POST"]

    @given(case=operation.as_strategy(), bound=st.integers(1, 3))
    @settings(max_examples=40, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    def holds(case: Any, bound: int) -> None:
        body = _soon_done(case.body, path, bound) if isinstance(case.body, dict) else case.body
        response = gateway.http.post(path, json=body)
        assert str(response.status_code) in operation.definition.raw["responses"], response.text
        assert response.status_code < 500 or _has_no_time(body), response.text
        if response.status_code != 200:
            assert response.json()["error"].keys() == {"message", "type", "param", "code"}
            assert response.json()["error"]["message"]

    holds()
    assert gateway.http.get("/health/ready").status_code == 200


def _soon_done(body: dict[str, Any], path: str, bound: int) -> dict[str, Any]:
    """As odd as it was, but not refused for what most made-up bodies lack, and not long in the making."""
    limit = {"/v1/responses": {"max_output_tokens": bound, "model": None}}
    limit |= {name: {} for name in ("/v1/batches", "/tokenize", "/detokenize")}
    body = {**body, **limit.get(path, {"max_tokens": bound, "n": 1, "model": None})}
    if isinstance(messages := body.get("messages"), list):
        body["messages"] = [_complete(message) if isinstance(message, dict) else message for message in messages]
    return {name: value for name, value in body.items() if name not in ("best_of", "max_completion_tokens")}


def _complete(message: dict[str, Any]) -> dict[str, Any]:
    message = {**message, "content": message.get("content") or "x"}
    return message if message.get("role") == "assistant" else {**message, "tool_calls": None}


def _has_no_time(body: Any) -> bool:
    """It asked to be over before it could be."""
    return isinstance(body, dict) and body.get("timeout") is not None
