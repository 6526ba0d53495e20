"""Who may ask an engine now: a line for each model, its bounds from the plan or from the engine's own limits.

Knows nothing of keys, but that each caller gets the same share.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from conch.gateway.admission.line import Bounds, Line, Wish
from conch.gateway.admission.pace import Usual
from conch.gateway.errors import Draining, QueueFull, TooLate
from conch.gateway.exchange import Exchange, Observer
from conch.gateway.prompts.sampling import rank_of
from conch.gateway.served import Served
from conch.gateway.settings import ModelSettings
from conch_build.plan_admission import Queue

_SECONDS = (0.001, 0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960)
_REASONS = ("queue_full", "deadline", "shutting_down")


class Queues(Observer):
    """Lets exchanges in, each model's in the order of its line."""

    def __init__(self, plan: Queue, models: Iterable[Served], registry: CollectorRegistry) -> None:
        models = list(models)
        self._lines = {model.name: Line(bounds_of(plan, model.settings, len(model.servers.pool))) for model in models}
        for model in models:
            model.servers.pool.on_change(partial(self._resize, plan, model))
        self._usual = {name: Usual() for name in self._lines}
        self._inside: dict[Exchange, Wish] = {}
        waited = Histogram(
            "vllm:request_queue_time_seconds",
            "From a request to its turn",
            ["model_name"],
            registry=registry,
            buckets=_SECONDS,
        )
        shed = Counter(
            "conch:shed_requests", "Requests sent away before they began", ["model_name", "reason"], registry=registry
        )
        self._waited = {name: waited.labels(name) for name in self._lines}
        self._shed = {(name, reason): shed.labels(name, reason) for name in self._lines for reason in _REASONS}
        registry.register(_Gauges(self._lines))

    async def admit(self, exchange: Exchange) -> None:
        """Raises QueueFull, TooLate or Draining."""
        name = exchange.served.name
        wish = Wish(
            exchange.choices,
            self._usual[name].reckoned(exchange.prompt_tokens, exchange.max_tokens, exchange.choices),
            rank_of(exchange.body),
            exchange.owner,
            exchange.latest,
        )
        try:
            await self._lines[name].enter(wish)
        except (QueueFull, TooLate, Draining) as refusal:
            reason = {QueueFull: "queue_full", TooLate: "deadline", Draining: "shutting_down"}[type(refusal)]
            self._shed[name, reason].inc()
            raise
        self._inside[exchange] = wish
        self._waited[name].observe(time.perf_counter() - exchange.began_at)

    async def ended(self, exchange: Exchange) -> None:
        wish = self._inside.pop(exchange, None)
        if wish is None:
            return
        if exchange.error is None:
            tokens = sum(answer.completion_tokens for answer in exchange.answers)
            cached = sum(answer.cached_tokens for answer in exchange.answers)
            self._usual[exchange.served.name].saw(exchange.prompt_tokens, cached, tokens / exchange.choices)
        self._lines[exchange.served.name].leave(wish)

    def _resize(self, plan: Queue, model: Served, servers: int) -> None:
        self._lines[model.name].rebound(bounds_of(plan, model.settings, servers))

    def clear(self) -> None:
        """Send away who waits, as another gateway can serve them sooner."""
        for line in self._lines.values():
            line.clear(Draining())


def bounds_of(plan: Queue, settings: ModelSettings, servers: int) -> Bounds:
    """The plan's, or what so many of the model's servers hold together; of none as of one, so that it can refuse."""
    one, servers = settings.capacity, max(1, servers)
    tokens = plan.running_tokens or (one.kv_tokens * servers if one.kv_tokens else math.inf)
    return Bounds(
        running=plan.running or servers * (one.batch + math.ceil(one.batch / 8)),
        running_tokens=tokens,
        waiting=servers * one.queue if plan.waiting is None else plan.waiting,
        waiting_tokens=plan.waiting_tokens or math.inf,
    )


_GAUGES: tuple[tuple[str, str, Callable[[Line], float]], ...] = (
    ("conch:queue_requests", "Requests that wait in the gateway", lambda line: line.waiting),
    ("conch:queue_tokens", "Tokens of them", lambda line: line.waiting_tokens),
    ("conch:admitted_answers", "Answers that are let in", lambda line: line.running),
    ("conch:admitted_tokens", "Tokens reckoned for them", lambda line: line.running_tokens),
)


class _Gauges(Collector):
    """The lines as they are when asked."""

    def __init__(self, lines: dict[str, Line]) -> None:
        self._lines = lines

    def collect(self) -> Iterator[GaugeMetricFamily]:
        for name, text, read in _GAUGES:
            family = GaugeMetricFamily(name, text, labels=["model_name"])
            for model, line in self._lines.items():
                family.add_metric([model], read(line))
            yield family
