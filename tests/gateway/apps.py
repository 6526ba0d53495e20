"""The gateway's app without a socket, before an engine that is not there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
from fastapi import FastAPI

from conch.gateway.app import create_app
from conch.gateway.database import Database
from conch.gateway.keys import grants as keys
from conch.gateway.settings import GatewaySettings, ModelSettings, Server
from conch_build.plan_gateway import Gateway

if TYPE_CHECKING:
    from conch_build.pipeline import BuildResult

NOWHERE = "127.0.0.1:9"


@asynccontextmanager
async def running_app(
    build: BuildResult, home: Path, *, require_key: bool = False, **plan: Any
) -> AsyncIterator[FastAPI]:
    """`home` is the gateway's own folder; `plan`: of `serving.gateway`."""
    model = ModelSettings.for_engine(build.engine.path, [Server(NOWHERE)], build.repository.path)
    app = create_app(GatewaySettings((model,), Gateway(**plan), home, require_key=require_key))
    async with app.router.lifespan_context(app):
        yield app


def client(app: FastAPI, key: str | None = None) -> httpx.AsyncClient:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway", headers=headers)


def new_key(home: Path, name: str = "ada", **grant: Any) -> str:
    """The text of a new key in the database of the gateway whose home this is."""
    database = Database.at(None, home)
    try:
        return database.run_now(lambda connection: keys.create(connection, keys.Grant(name, **grant)))[1]
    finally:
        database.close_now()
