"""Errors over HTTP: one shape, the right status, and never a word from below."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse
from starlette.middleware import Middleware

from conch.gateway import errors
from conch.gateway.transport.lifecycle import Lifecycle
from conch.gateway.transport.middleware import Admission, BodyLimit, Envelope
from conch_build.errors import (
    CancelledError,
    ConchError,
    DeadlineError,
    NotFoundError,
    OverloadedError,
    RequestError,
    ServiceError,
    SetupError,
    UnavailableError,
)

SECRET = "triton_python_backend_shm_region_17"


@pytest.fixture
def lifecycle() -> Lifecycle:
    return Lifecycle()


@pytest.fixture
async def client(lifecycle: Lifecycle) -> AsyncIterator[httpx.AsyncClient]:
    raised: dict[str, Exception] = {
        "request": RequestError("bad field", param="top_p", code="invalid_value"),
        "missing": NotFoundError("no such model", code="model_not_found"),
        "full": OverloadedError(SECRET),
        "down": UnavailableError(SECRET),
        "late": DeadlineError(SECRET),
        "gone": CancelledError(SECRET),
        "failed": ServiceError(SECRET),
        "setup": SetupError(SECRET),
        "bug": KeyError(SECRET),
    }
    layers = [
        Middleware(Envelope),
        Middleware(Admission, lifecycle=lifecycle),
        Middleware(BodyLimit, limit=1000),
    ]
    app = FastAPI(middleware=layers)
    errors.install(app)

    @app.get("/v1/raise/{name}")
    async def fail(name: str) -> None:
        raise raised[name]

    @app.post("/v1/size")
    async def size(request: Request) -> int:
        return len(await request.body())

    @app.get("/page")
    async def page() -> HTMLResponse:
        return HTMLResponse("<p>")

    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        yield client


@pytest.mark.parametrize(
    ("name", "status", "kind", "code"),
    [
        ("request", 400, "invalid_request_error", "invalid_value"),
        ("missing", 404, "invalid_request_error", "model_not_found"),
        ("full", 429, "rate_limit_error", "overloaded"),
        ("down", 503, "server_error", "unavailable"),
        ("late", 504, "server_error", "timeout"),
        ("gone", 499, "invalid_request_error", "cancelled"),
        ("failed", 502, "server_error", "engine_error"),
        ("setup", 503, "server_error", "engine_error"),
        ("bug", 500, "server_error", "internal_error"),
    ],
)
async def test_each_error_has_its_status_and_no_inner_words(
    client: httpx.AsyncClient, name: str, status: int, kind: str, code: str
) -> None:
    response = await client.get(f"/v1/raise/{name}")
    assert response.status_code == status
    assert SECRET not in response.text
    error = response.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert (error["type"], error["code"]) == (kind, code)
    assert ("retry-after" in response.headers) == (status in (429, 503))
    assert response.headers["x-request-id"]


async def test_the_field_at_fault_is_named(client: httpx.AsyncClient) -> None:
    error = (await client.get("/v1/raise/request")).json()["error"]
    assert (error["param"], error["message"]) == ("top_p", "bad field")


async def test_an_unknown_url_and_a_wrong_method_have_the_same_shape(client: httpx.AsyncClient) -> None:
    for response, status in ((await client.get("/nope"), 404), (await client.get("/v1/size"), 405)):
        assert response.status_code == status
        assert response.json()["error"].keys() == {"message", "type", "param", "code"}


async def test_a_request_id_is_echoed_unless_it_is_unfit(client: httpx.AsyncClient) -> None:
    response = await client.get("/nope", headers={"x-request-id": "mine-1"})
    assert response.headers["x-request-id"] == "mine-1"
    response = await client.get("/nope", headers={"x-request-id": "a b" + "x" * 200})
    assert response.headers["x-request-id"].isalnum()


async def test_a_body_over_the_limit_is_refused_declared_or_not(client: httpx.AsyncClient) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b"x" * 100

    assert (await client.post("/v1/size", content=b"x" * 1000)).json() == 1000
    for content in (b"x" * 1001, chunks()):
        response = await client.post("/v1/size", content=content)
        assert response.status_code == 413
        assert response.json()["error"]["code"] == "body_too_large"


async def test_a_page_loads_nothing_from_elsewhere_and_no_answer_is_taken_for_another_type(
    client: httpx.AsyncClient,
) -> None:
    page = (await client.get("/page")).headers
    assert page["content-security-policy"].startswith("default-src 'self'")
    assert page["x-frame-options"] == "DENY"
    assert page["referrer-policy"] == "no-referrer"
    other = (await client.get("/nope")).headers
    assert "content-security-policy" not in other
    assert page["x-content-type-options"] == other["x-content-type-options"] == "nosniff"


async def test_new_requests_are_refused_while_draining(client: httpx.AsyncClient, lifecycle: Lifecycle) -> None:
    await lifecycle.drain(1)
    response = await client.post("/v1/size", content=b"x")
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "shutting_down"
    assert response.headers["retry-after"]


def test_every_error_of_the_tree_becomes_json() -> None:
    def leaves(kind: type[ConchError]) -> list[type[ConchError]]:
        return [kind, *(leaf for child in kind.__subclasses__() for leaf in leaves(child))]

    for kind in leaves(ConchError):
        error: Any = kind.__new__(kind)
        ConchError.__init__(error, "x")
        error.param = error.code = None
        assert json.dumps(errors.body_of(error))


def test_words_from_below_reach_nobody_whatever_the_error() -> None:
    """Only errors about the request itself, and the gateway's own refusals, speak for themselves."""

    def leaves(kind: type[ConchError]) -> list[type[ConchError]]:
        return [kind, *(leaf for child in kind.__subclasses__() for leaf in leaves(child))]

    silent = [kind for kind in leaves(ConchError) if not issubclass(kind, RequestError | errors.Told)]
    assert len(silent) > 12
    for kind in silent:
        error: Any = kind.__new__(kind)
        ConchError.__init__(error, SECRET, where=f"/{SECRET}", fix=SECRET)
        assert SECRET not in json.dumps(errors.body_of(error)), kind
        assert SECRET not in str(errors.headers_of(error.http_status, error))
        assert SECRET not in errors.answer_to(error).body.decode()


def test_no_module_of_the_gateway_reads_the_url_that_a_host_header_can_forge() -> None:
    folder = Path(errors.__file__).parent
    assert not [path.name for path in folder.glob("*.py") if "request.url" in path.read_text()]
