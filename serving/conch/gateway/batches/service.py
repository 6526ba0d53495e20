"""Files and batches of a gateway, put together: what the app needs of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from fastapi import APIRouter

from conch.gateway.batches.asking import Asker, Handler, KeyOf
from conch.gateway.batches.endpoints import BatchEndpoints
from conch.gateway.batches.file_store import FileStore
from conch.gateway.batches.files import Files
from conch.gateway.batches.run import Shop
from conch.gateway.batches.runner import BatchRunner
from conch.gateway.batches.store import BatchStore
from conch.gateway.context import Context
from conch.gateway.database import Database


class Batching:
    def __init__(self, context: Context, database: Database, handlers: Mapping[str, Handler], key_of: KeyOf) -> None:
        """`handlers`: of live requests, by the path of their endpoint."""
        settings = context.settings
        plan = settings.plan.batches
        files, store = FileStore(database, settings.home / "files"), BatchStore(database)
        experiments = context.experiments.names()

        def check_model(name: str | None) -> None:
            if name not in experiments:
                context.catalog.find(name)

        batch = sum(model.capacity.batch * len(model.servers) for model in settings.models)
        shop = Shop(
            store=store,
            files=files,
            asker=Asker(handlers, context.lifecycle, key_of),
            plan=plan,
            line_bytes=settings.plan.limits.body_bytes,
            check_model=check_model,
            lenient=settings.lenient,
            places=asyncio.Semaphore(plan.running or max(1, batch // 2)),
        )
        self._runner = BatchRunner(shop)
        context.lifecycle.on_drain(self._runner.drain)
        self._routers = Files(files, plan).router(), BatchEndpoints(store, self._runner, plan, files.place).router()

    def router(self) -> APIRouter:
        router = APIRouter()
        for inner in self._routers:
            router.include_router(inner)
        return router

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Batches run inside; at its end what was answered has been written down."""
        task = asyncio.ensure_future(self._runner.run())
        try:
            yield
        finally:
            self._runner.drain()
            await asyncio.wait((task,))
