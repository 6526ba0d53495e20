"""The experiments of a gateway: who gets which variant, what comes of it, and when a variant must stop.

Observations are gathered here and go to the database every `TURN_SECONDS`, where those of all gateways meet; weights
come back on the same way, so that `conch ab` steers a running gateway. What a crash can lose is one turn's figures.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from fastapi import Request
from sqlalchemy import Connection

from conch.gateway.ab import store
from conch.gateway.ab.assignment import assigned
from conch.gateway.ab.figures import broken
from conch.gateway.ab.sequential import Moments
from conch.gateway.ab.shadow import Shadows
from conch.gateway.background import background
from conch.gateway.database import Database
from conch.gateway.exchange import Chosen, Exchange, Observer, owner_of
from conch.gateway.protocol import Generation
from conch.gateway.served import Catalog
from conch_build.errors import CancelledError, ConchError, NotFoundError, PlanError, RequestError
from conch_build.plan_experiments import SHADOW, Experiment

TURN_SECONDS = 1.0

log = logging.getLogger("conch.gateway")


@dataclass
class _Running:
    """One experiment as this gateway has it."""

    plan: Experiment
    weights: dict[str, float]
    new: store.Kept = field(default_factory=dict)
    """What has been seen since the last turn."""
    failures: dict[str, int] = field(default_factory=dict)
    """In a row, of each variant."""

    def saw(self, variant: str, figure: str, value: float) -> None:
        figures = self.new.setdefault(variant, {})
        figures[figure] = figures.get(figure, Moments()).plus(value)


class Experiments(Observer):
    def __init__(self, plans: Mapping[str, Experiment], database: Database, catalog: Catalog) -> None:
        """Raises PlanError for a variant that no model of the gateway is."""
        for name, plan in plans.items():
            for variant, part in plan.variants.items():
                _check(catalog, part.model, f"serving.gateway.experiments.{name}.variants.{variant}.model")
            if plan.shadow is not None:
                _check(catalog, plan.shadow.model, f"serving.gateway.experiments.{name}.shadow.model")
        self._database = database
        self._running = {
            name: _Running(plan, {variant: part.weight for variant, part in plan.variants.items()})
            for name, plan in plans.items()
        }
        self._answers: list[store.Answered] = []
        self.shadows = Shadows()

    def names(self) -> dict[str, str]:
        """The experiments, each with the model that is its baseline."""
        return {name: next(iter(run.plan.variants.values())).model for name, run in self._running.items()}

    def choose(self, request: Request, body: Generation) -> Chosen | None:
        """None: the request names no experiment."""
        shadow: Chosen | None = getattr(request.state, "chosen", None)
        run = self._running.get(body.model or "")
        if shadow is not None or run is None:
            return shadow
        name = str(body.model)
        variant = assigned(name, _caller(run.plan, request, body), run.weights)
        return Chosen(name, variant, run.plan.variants[variant].model)

    async def ended(self, exchange: Exchange) -> None:
        """Neither a client that left nor a request that was wrong says anything of the variant."""
        chosen = exchange.chosen
        if chosen is None or isinstance(exchange.error, CancelledError | RequestError):
            return
        run, failed = self._running[chosen.experiment], exchange.error is not None
        run.saw(chosen.variant, "errors", float(failed))
        run.failures[chosen.variant] = run.failures.get(chosen.variant, 0) + 1 if failed else 0
        if failed:
            most = run.plan.guard.failures_in_a_row
            if chosen.variant != SHADOW and most is not None and run.failures[chosen.variant] == most:
                await self._stop(chosen.experiment, chosen.variant, f"{most} requests in a row have failed")
            return
        assert exchange.ended_at is not None
        run.saw(chosen.variant, "e2e", exchange.ended_at - exchange.began_at)
        if exchange.streaming and exchange.first_token_at is not None:
            run.saw(chosen.variant, "ttft", exchange.first_token_at - exchange.began_at)
        if exchange.usd is not None:
            run.saw(chosen.variant, "cost", exchange.usd)
        if exchange.answer_id and chosen.variant != SHADOW:
            self._answers.append(store.Answered(exchange.answer_id, chosen.experiment, chosen.variant, exchange.owner))
        if run.plan.shadow is not None and chosen.variant != SHADOW:
            self.shadows.copy(exchange, chosen.experiment, run.plan.shadow)

    async def feedback(self, answer: str, owner: str, value: float) -> tuple[str, str, float | None] | None:
        """`store.score`, of answers that were given just now, too."""
        await self.turn()
        return await self._database.run(lambda connection: store.score(connection, answer, owner, value))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Turns are taken inside. A database that fails is asked again, and nothing seen is forgotten."""
        try:
            async with background(self._run()):
                yield
        finally:
            await self.shadows.end()
            with contextlib.suppress(ConchError):
                await self.turn()

    async def _run(self) -> None:
        enrolled = False
        while self._running:
            with contextlib.suppress(ConchError):
                if not enrolled:
                    await self._database.run(self._enroll)
                    enrolled = True
                await self.turn()
            await asyncio.sleep(TURN_SECONDS)

    def _enroll(self, connection: Connection) -> None:
        for name, run in self._running.items():
            store.enroll(connection, name, run.plan)

    async def turn(self) -> None:
        """Hand over what was seen, hold the variants to their guards, take the weights."""
        if not self._answers and not any(run.new for run in self._running.values()):
            return self._take(await self._database.read(self._weights))
        answers, self._answers = self._answers, []
        taken = {name: run.new for name, run in self._running.items()}
        for run in self._running.values():
            run.new = {}

        def work(connection: Connection) -> dict[str, dict[str, float]]:
            for name, variants in taken.items():
                for variant, figures in variants.items():
                    for figure, new in figures.items():
                        store.add(connection, name, variant, figure, new)
            store.remember(connection, answers)
            for name, run in self._running.items():
                if taken[name]:
                    _guard(connection, name, run.plan)
            return self._weights(connection)

        try:
            weights = await self._database.run(work)
        except ConchError:
            self._answers = answers + self._answers
            for name, variants in taken.items():
                _put_back(self._running[name], variants)
            raise
        self._take(weights)

    def _weights(self, connection: Connection) -> dict[str, dict[str, float]]:
        return {name: store.weights(connection, name) for name in self._running}

    def _take(self, weights: Mapping[str, dict[str, float]]) -> None:
        for name, now in weights.items():
            self._running[name].weights = now or self._running[name].weights

    async def _stop(self, name: str, variant: str, reason: str) -> None:
        run = self._running[name]
        if variant == next(iter(run.plan.variants)):
            return
        log.warning("experiment %s: %s stops: %s", name, variant, reason)
        run.weights = {**run.weights, variant: 0.0}
        if not any(run.weights.values()):
            run.weights[next(iter(run.weights))] = 1.0
        with contextlib.suppress(ConchError):
            await self._database.run(lambda connection: store.stop(connection, name, variant, reason))


def _guard(connection: Connection, name: str, plan: Experiment) -> None:
    """Stop the variants that have certainly passed a guard rail."""
    weights, kept = store.weights(connection, name), store.kept(connection, name)
    baseline, *others = plan.variants
    for variant in others:
        reason = broken(plan.guard, kept.get(baseline, {}), kept.get(variant, {}))
        if reason is not None and weights.get(variant):
            log.warning("experiment %s: %s stops: %s", name, variant, reason)
            store.stop(connection, name, variant, reason)


def _put_back(run: _Running, variants: store.Kept) -> None:
    for variant, figures in variants.items():
        there = run.new.setdefault(variant, {})
        for figure, seen in figures.items():
            there[figure] = seen.merged(there.get(figure, Moments()))


def _caller(plan: Experiment, request: Request, body: Generation) -> str:
    """Who keeps its variant; somebody new where the request does not tell."""
    told = {
        "user": body.user,
        "key": owner_of(request),
        "session": request.headers.get("x-session-id"),
        "none": None,
    }[plan.sticky]
    return told or uuid.uuid4().hex


def _check(catalog: Catalog, model: str, where: str) -> None:
    try:
        catalog.find(model)
    except NotFoundError:
        fix = "Name one of `serving.gateway.models`, the plan's own, or an adapter of theirs."
        raise PlanError(f"the gateway has no model {model!r}", where=where, fix=fix) from None
