"""GET /metrics: the gateway's figures, the machine's and the engines', in one text that is valid whoever is behind."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence

import httpx
from fastapi import APIRouter, Response
from fastapi.params import Depends
from prometheus_client import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from conch.gateway.context import Context
from conch.gateway.served import Catalog, Served
from conch.gateway.watching.metrics.engine import Adapters, adapter_family, engine_families, read_engines
from conch_build.errors import ConchError

_TEXT = "text/plain; version=0.0.4; charset=utf-8"


def router(
    context: Context,
    http: httpx.AsyncClient,
    queued: Callable[[], Mapping[str, int]],
    dependencies: Sequence[Depends] = (),
) -> APIRouter:
    """`queued`: how many requests of each model wait to be let in."""
    router = APIRouter(dependencies=list(dependencies))

    @router.get("/metrics")
    async def metrics() -> Response:
        """Prometheus text."""
        readings, adapters = await asyncio.gather(
            read_engines(http, engines_of(context.catalog)), _adapters(context.catalog)
        )
        families = [*engine_families(readings, queued()), *adapter_family(adapters)]
        # In a thread, as GPUs are asked: streams must flow.
        own, engines = await asyncio.to_thread(
            lambda: (generate_latest(context.metrics.registry), generate_latest(_Collected(families)))
        )
        return Response(own + engines, media_type=_TEXT)

    return router


def engines_of(catalog: Catalog) -> Iterator[tuple[str, dict[str, str | None]]]:
    """Every model's name with its servers' metrics URLs, by their numbers; of those that read prompts for others
    `context-` and their number."""
    for served in catalog:
        yield (
            served.name,
            {
                f"{name}{number}": member.door.metrics_url
                for name, pool in zip(("", "context-"), served.pools, strict=False)
                for number, member in pool.members.items()
            },
        )


async def _adapters(catalog: Catalog) -> list[Adapters]:
    """Of the models that have some and whose engine answers."""
    asked = [_listed(served) for served in catalog if served.settings.adapters]
    return [adapters for adapters in await asyncio.gather(*asked) if adapters is not None]


async def _listed(served: Served) -> Adapters | None:
    with contextlib.suppress(ConchError):
        return Adapters(served.name, served.settings.adapter_slots, await served.servers.adapters())
    return None


class _Collected(Collector):
    """What was collected before."""

    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Sequence[Metric]:
        return self._families
