"""Who may ask: every route, every way around it."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute

from conch.gateway.database import Database
from conch.gateway.keys import grants as keys
from conch.gateway.keys.authority import FOLLOW_SECONDS, check_exposed, check_place
from conch_build.errors import SetupError
from conch_build.plan_gateway import Gateway
from tests.gateway.apps import client, new_key, running_app

if TYPE_CHECKING:
    from conch_build.pipeline import BuildResult

OPEN = {"/health/live", "/health/ready", "/health", "/dashboard"}
"""The last is a page without figures, which asks its reader for a key."""
OTHERS = {"inference": "/tokenize", "adapters": "/v1/load_lora_adapter", "metrics": "/metrics"}


def operations(app: FastAPI) -> Iterator[tuple[str, str]]:
    """Method and path of every route, its parameters filled in."""
    for route in routes_of(app.routes):
        path = route.path
        for name in route.param_convertors:
            path = path.replace(f"{{{name}:path}}", "x").replace(f"{{{name}}}", "x")
        for method in route.methods:
            yield method, path


def routes_of(routes: Any) -> Iterator[APIRoute]:
    for route in routes:
        if isinstance(route, APIRoute):
            yield route
        else:
            nested = getattr(getattr(route, "original_router", route), "routes", None)
            assert nested is not None, f"{type(route)} is a route that this test cannot see into"
            yield from routes_of(nested)


async def status(app: FastAPI, method: str, path: str, **headers: str) -> int:
    """What raw ASGI gets: no client has tidied up the path or the Host."""
    sent: list[dict[str, Any]] = []
    plain, _, query = path.partition("?")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": plain,
        "raw_path": plain.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(name.encode(), value.encode()) for name, value in {"host": "gateway", **headers}.items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
    }

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    await asyncio.wait_for(app(scope, receive, send), 20)
    return int(sent[0]["status"])


@pytest.mark.conforms("AUTH-1")
async def test_every_route_but_health_is_closed_to_who_has_no_key(sample_build: BuildResult, tmp_path: Path) -> None:
    new_key(tmp_path)
    async with running_app(sample_build, tmp_path) as app:
        found = list(operations(app))
        assert len(found) > 12
        for method, path in found:
            for host in ("gateway", "a/?x", "127.0.0.1", "a/health/live?", "gateway/health/live#"):
                got = await status(app, method, path, host=host)
                assert (got != 401) == (path in OPEN), (method, path, host, got)


@pytest.mark.conforms("AUTH-1")
@pytest.mark.parametrize(
    "path",
    [
        "//v1/models",
        "/v1//models",
        "/v1/models/",
        "/v1/models/../../health/live",
        "/health/live/../../v1/models",
        "/health/../v1/models",
        "/v1/models;/health/live",
        "/v1/models?/health/live",
        "/v1/models#/health/live",
        "/v1/models%2f",
        "/%76%31/models",
        "/V1/models",
        "/v1/models/health/live",
        "/metrics/",
        "/.//metrics",
        "/health/live\n/../metrics",
    ],
)
async def test_no_odd_path_leads_around_the_key(sample_build: BuildResult, tmp_path: Path, path: str) -> None:
    new_key(tmp_path)
    async with running_app(sample_build, tmp_path) as app:
        for method in ("GET", "HEAD", "POST", "OPTIONS", "DELETE", "get"):
            assert await status(app, method, path) in (401, 404, 405)


@pytest.mark.conforms("AUTH-2")
async def test_wrong_keys_are_refused_in_openais_shape(sample_build: BuildResult, tmp_path: Path) -> None:
    text = new_key(tmp_path)
    basic = base64.b64encode(f"x:{text}".encode()).decode()
    async with running_app(sample_build, tmp_path) as app, client(app) as http:
        for header in (
            "",
            "Bearer",
            f"Bearer {text}x",
            text,
            f"Basic {basic}",
            "Bearer sk-proj-1",
            f"Bearer {'a' * 9000}",
        ):
            answer = await http.get("/v1/models", headers={"authorization": header} if header else {})
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"]
            error = answer.json()["error"]
            assert error.keys() == {"message", "type", "param", "code"}
            assert (error["type"], error["param"]) == ("invalid_request_error", None)
            assert error["code"] in ("invalid_api_key", "missing_api_key")
            assert text[-40:] not in answer.text
        twice = await http.get("/version", headers=[("authorization", f"Bearer {text}"), ("authorization", "Bearer x")])
        assert twice.status_code == 401
        assert (await http.get("/version", headers={"authorization": f"bearer {text}"})).status_code == 200


@pytest.mark.conforms("AUTH-3")
@pytest.mark.parametrize("scope", OTHERS)
async def test_a_scope_opens_its_own_routes_and_no_others(
    sample_build: BuildResult, tmp_path: Path, scope: str
) -> None:
    text = new_key(tmp_path, scopes=(scope,))
    async with running_app(sample_build, tmp_path) as app, client(app, text) as http:
        for other, path in OTHERS.items():
            answer = await (http.get(path) if path == "/metrics" else http.post(path, json={"prompt": "a"}))
            assert (answer.status_code == 403) == (other != scope), path
            if other != scope:
                assert answer.json()["error"]["code"] == "missing_scope"
                assert other in answer.json()["error"]["message"]
        assert (await http.get("/v1/models")).status_code == 200


@pytest.mark.conforms("AUTH-3")
async def test_a_key_sees_and_asks_only_its_models(sample_build: BuildResult, tmp_path: Path) -> None:
    text, none = new_key(tmp_path, models=("smollm2",)), new_key(tmp_path, "bob", models=("other",))
    async with running_app(sample_build, tmp_path) as app, client(app, text) as mine, client(app, none) as others:
        assert [card["id"] for card in (await mine.get("/v1/models")).json()["data"]] == ["smollm2"]
        assert (await others.get("/v1/models")).json()["data"] == []
        assert (await others.get("/v1/models/smollm2")).status_code == 404
        for path, body in (
            ("completions", {"prompt": "a"}),
            ("chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
            ("responses", {"input": "a"}),
        ):
            for model in ({}, {"model": "smollm2"}):
                refused = await others.post(f"/v1/{path}", json={**body, **model})
                assert (refused.status_code, refused.json()["error"]["code"]) == (403, "model_not_found")
                assert (await mine.post(f"/v1/{path}", json={**body, **model})).status_code == 503
        assert (await others.post("/tokenize", json={"prompt": "a"})).status_code == 403
        assert (await mine.post("/tokenize", json={"prompt": "a"})).status_code == 200


@pytest.mark.conforms("AUTH-4")
async def test_a_running_gateway_follows_the_database(sample_build: BuildResult, tmp_path: Path) -> None:
    other = Database.at(None, tmp_path)
    async with running_app(sample_build, tmp_path) as app, client(app) as anybody:
        assert (await anybody.get("/version")).status_code == 200
        text = await asyncio.to_thread(new_key, tmp_path)
        await asyncio.sleep(FOLLOW_SECONDS + 0.5)
        async with client(app, text) as http:
            assert (await http.get("/version")).status_code == 200
            assert (await anybody.get("/version")).status_code == 401
            await other.run(lambda connection: keys.revoke(connection, "ada"))
            await asyncio.sleep(FOLLOW_SECONDS + 0.5)
            refused = await http.get("/version")
            assert refused.status_code == 401 and "revoked" in refused.json()["error"]["message"]
            # A gateway that had keys is never open again.
            await other.run(lambda connection: connection.exec_driver_sql("DELETE FROM keys"))
            await asyncio.sleep(FOLLOW_SECONDS + 0.5)
            assert (await anybody.get("/version")).status_code == 401
    await other.close()


async def test_keys_stay_as_they_were_while_the_database_is_away(sample_build: BuildResult, tmp_path: Path) -> None:
    text = new_key(tmp_path)
    other = Database.at(None, tmp_path)
    async with running_app(sample_build, tmp_path) as app, client(app, text) as http:
        await other.run(lambda connection: connection.exec_driver_sql("ALTER TABLE keys RENAME TO gone"))
        await asyncio.sleep(FOLLOW_SECONDS + 0.5)
        assert (await http.get("/version")).status_code == 200
        await other.run(lambda connection: connection.exec_driver_sql("ALTER TABLE gone RENAME TO keys"))
        await other.run(lambda connection: keys.revoke(connection, "ada"))
        await asyncio.sleep(FOLLOW_SECONDS + 0.5)
        assert (await http.get("/version")).status_code == 401
    await other.close()


@pytest.mark.conforms("AUTH-5")
async def test_a_gateway_that_requires_a_key_answers_nobody_before_there_is_one(
    sample_build: BuildResult, tmp_path: Path
) -> None:
    async with running_app(sample_build, tmp_path, require_key=True) as app:
        check_exposed("0.0.0.0", app.state.authority.guarded)
        async with client(app) as http:
            assert (await http.get("/v1/models")).status_code == 401
            assert (await http.get("/health/live")).status_code == 200
        text = new_key(tmp_path)
        await asyncio.sleep(FOLLOW_SECONDS + 0.5)
        async with client(app, text) as http:
            assert (await http.get("/v1/models")).status_code == 200


@pytest.mark.conforms("AUTH-5")
def test_without_keys_only_loopback_may_be_bound_to() -> None:
    for host in ("0.0.0.0", "::", "192.168.1.2", "2001:db8::1"):
        with pytest.raises(SetupError, match="conch keys create"):
            check_exposed(host, guarded=False)
        check_exposed(host, guarded=True)
    for host in ("127.0.0.1", "127.1.2.3", "::1"):
        check_exposed(host, guarded=False)


@pytest.mark.conforms("AUTH-5")
def test_a_gateway_that_would_be_open_is_refused_before_a_model_is_loaded(tmp_path: Path) -> None:
    check_place("127.0.0.1", Gateway(), tmp_path)
    with pytest.raises(SetupError, match="conch keys create"):
        check_place("0.0.0.0", Gateway(), tmp_path)
    new_key(tmp_path)
    check_place("0.0.0.0", Gateway(), tmp_path)
