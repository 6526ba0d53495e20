"""The OpenAPI document of the gateway, which it gives at /openapi.json; `serving/openapi.json` is a copy.

The endpoints read their bodies themselves, to answer mistakes as OpenAI does; what they read is told here.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from conch.gateway.ab.feedback import FeedbackRequest
from conch.gateway.batches.endpoints import BatchRequest
from conch.gateway.endpoints.models import AdapterOrder
from conch.gateway.endpoints.tokens import DetokenizeRequest, TokenizeRequest
from conch.gateway.protocol import ChatRequest, CompletionRequest
from conch.gateway.protocol.responses import ResponsesRequest

_BODIES: dict[str, type[BaseModel]] = {
    "/v1/chat/completions": ChatRequest,
    "/v1/completions": CompletionRequest,
    "/v1/responses": ResponsesRequest,
    "/v1/batches": BatchRequest,
    "/v1/feedback": FeedbackRequest,
    "/v1/load_lora_adapter": AdapterOrder,
    "/v1/unload_lora_adapter": AdapterOrder,
    "/tokenize": TokenizeRequest,
    "/detokenize": DetokenizeRequest,
}
_STREAMED = ("/v1/chat/completions", "/v1/completions", "/v1/responses")
_TEXT = ("/metrics",)
_NULLABLE = {"type": ["string", "null"]}
_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": _NULLABLE,
                "code": _NULLABLE,
            },
        }
    },
}
_KEYS = {
    "401": "There are API keys, and none of them came",
    "403": "The API key does not open this",
}
_REFUSALS = {
    "400": "The request is wrong; `param` names where",
    "404": "No such model, response or URL",
    "413": "The body is too large",
    "415": "The body is not JSON",
    "429": "The engine's queue is full, or the API key is over a limit",
    "502": "The engine failed",
    "503": "The model is not ready, or the gateway is shutting down",
    "504": "The engine did not answer in time",
}


def document(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI 3.1 document of the app that `create_app` makes."""
    described: dict[str, Any] = get_openapi(title="Conch", version=version("conch"), routes=app.routes)
    models = list(dict.fromkeys(_BODIES.values()))
    names, schemas = models_json_schema(
        [(model, "validation") for model in models], ref_template="#/components/schemas/{model}"
    )
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            if method == "post" and path in _BODIES:
                content = {"application/json": {"schema": names[_BODIES[path], "validation"]}}
                operation["requestBody"] = {"required": True, "content": content}
            operation["responses"] = _responses(path, method, guarded="security" in operation)
    described["components"] |= {"schemas": {**schemas["$defs"], "Error": _ERROR}}
    return described


def _responses(path: str, method: str, *, guarded: bool) -> dict[str, Any]:
    anything: dict[str, Any] = {"schema": {"type": "object"}}
    content = {"text/plain": {"schema": {"type": "string"}}} if path in _TEXT else {"application/json": anything}
    if path in _STREAMED and method == "post":
        content["text/event-stream"] = {"schema": {"type": "string"}}
    failure = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    if path.startswith("/health"):
        down = {"description": "Not ready", "content": {"application/json": anything}}
        return {"200": {"description": "Ready", "content": content}, "503": down}
    told = dict(_KEYS) if guarded else {}
    if path.startswith("/v1") or path in _BODIES:
        told |= _REFUSALS
    refusals = {status: {"description": text, "content": failure} for status, text in sorted(told.items())}
    return {"200": {"description": "The answer", "content": content}, **refusals}
