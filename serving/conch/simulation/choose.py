"""Which fleet to buy: for each number of GPUs the best way to split them, or the fewest GPUs for a rate.

Servers of one kind, over 1, 2, 4 or 8 GPUs each, that read and answer; or some that read and others that answer. All
ways are tried on the fewest GPUs, the two best on the next number, the best of those on more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from conch.simulation.capacity import Found, Question, capacity, trial
from conch.simulation.counted import Policy
from conch.simulation.fleet import Fleet
from conch.simulation.outside import Split
from conch.simulation.replica import Hardware
from conch.simulation.steps import Shape
from conch_build.cost import Price
from conch_build.errors import InputError

_READERS = (0.25, 0.5, 0.75)
"""Shares of servers that read prompts, which are tried."""
Say = Callable[[str], None]


@dataclass(frozen=True)
class Machines:
    """`hardware`: GPUs that one server spans -> the server. `link`: between those that read and those that answer;
    None: no such split is tried. `gpu_hourly_usd`: of one GPU."""

    hardware: dict[int, Hardware]
    link: Split | None
    gpu_hourly_usd: float | None = None
    seed: int = 0


@dataclass(frozen=True)
class Way:
    """One split of GPUs into servers."""

    tensor: int
    reader_share: float = 0.0

    def fleet(self, machines: Machines, gpus: int) -> Fleet | None:
        """None where so few GPUs cannot be split so."""
        servers = gpus // self.tensor
        readers = round(servers * self.reader_share)
        if servers - readers < 1 or (self.reader_share and not readers):
            return None
        split = replace(machines.link, prefill=readers) if machines.link is not None and readers else None
        return Fleet(
            machines.hardware[self.tensor], servers - readers, Policy.GUARANTEED, split=split, seed=machines.seed
        )


@dataclass(frozen=True)
class Choice:
    gpus: int
    tensor: int
    answering: int
    """Servers that answer, and that also read where no others do."""
    reading: int
    requests_per_second: float
    tokens_per_second: float
    ttft_p95_ms: float | None
    itl_p95_ms: float | None
    usd_per_hour: float | None
    usd_per_million_tokens: float | None
    """Of prompts and answers together, at that rate."""
    gateways: float
    """Processes of the gateway that so many tokens keep busy."""
    breaks_first: str
    breaks_at: float
    """Requests a second."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def choices(machines: Machines, question: Question, sizes: Sequence[int], say: Say) -> list[tuple[int, list[Choice]]]:
    """For each number of GPUs what it can be split into, best first."""
    found: list[tuple[int, list[Choice]]] = []
    ways = [Way(tensor, share) for tensor in machines.hardware for share in (0.0, *(_READERS if machines.link else ()))]
    per_gpu: dict[Way, float] = {}
    for gpus in sorted(sizes):
        tried: dict[Way, Choice] = {}
        for way in ways:
            fleet = way.fleet(machines, gpus)
            if fleet is None:
                continue
            say(f"{gpus} GPUs, {_told(fleet, way)}")
            guess = per_gpu[way] * gpus if way in per_gpu else _guess(fleet, question)
            asked = _priced(question, machines, way)
            try:
                best = capacity(fleet, asked, guess, growth=1.1 if way in per_gpu else 1.6)
            except InputError as error:
                say(f"  {error.message}")
                continue
            tried[way] = _choice(fleet, way, machines, best)
            per_gpu[way] = best.rate / gpus
        if not tried:
            raise InputError(
                f"is not kept by {gpus} GPUs, however they are split", where="the SLO", fix="Loosen it, or take others."
            )
        order = sorted(tried, key=lambda way: tried[way].requests_per_second, reverse=True)
        found.append((gpus, [tried[way] for way in order]))
        ways = order[: 2 if len(found) == 1 else 1]
    return found


def fewest(machines: Machines, question: Question, rate: float, say: Say) -> Choice:
    """The fewest GPUs that keep the limits at `rate` requests a second, and how they are split."""
    least = max(machines.hardware)
    _, tried = choices(machines, question, [least], say)[0]
    best: Choice | None = None
    for one in tried:
        way = Way(one.tensor, one.reading / (one.reading + one.answering))
        gpus = max(math.ceil(0.8 * rate / one.requests_per_second * least / one.tensor), 1) * one.tensor
        while best is None or gpus < best.gpus:
            fleet = way.fleet(machines, gpus)
            if fleet is not None:
                asked = _priced(question, machines, way)
                row, _ = trial(fleet, asked, rate, 0.0)
                say(f"{gpus} GPUs, {_told(fleet, way)}: {row['good_share']:.1%} good")
                if row["slo_met"]:
                    found = capacity(fleet, asked, rate, growth=1.1)
                    best = _choice(fleet, way, machines, found)
                    break
            gpus += max(one.tensor, gpus // 50 // one.tensor * one.tensor)
    assert best is not None
    return best


def _choice(fleet: Fleet, way: Way, machines: Machines, found: Found) -> Choice:
    readers = fleet.split.prefill if fleet.split else 0
    gpus = (fleet.replicas + readers) * way.tensor
    row = found.row
    return Choice(
        gpus=gpus,
        tensor=way.tensor,
        answering=fleet.replicas,
        reading=readers,
        requests_per_second=found.rate,
        tokens_per_second=row["tokens_per_second"],
        ttft_p95_ms=row["ttft_p95_ms"],
        itl_p95_ms=row["itl_p95_ms"],
        usd_per_hour=None if machines.gpu_hourly_usd is None else machines.gpu_hourly_usd * gpus,
        usd_per_million_tokens=row["usd_per_million_tokens"],
        gateways=row["gateways"],
        breaks_first=found.broke,
        breaks_at=found.broke_at,
    )


def _priced(question: Question, machines: Machines, way: Way) -> Question:
    hourly = machines.gpu_hourly_usd
    return replace(question, server_price=None if hourly is None else Price(hourly, way.tensor))


def _guess(fleet: Fleet, question: Question) -> float:
    """Half of what steps of a full batch would give."""
    jobs = list(question.workload.jobs([0.0] * 200))
    prompt = sum(len(job.prompt) for job in jobs) // len(jobs)
    answer = max(sum(job.answer for job in jobs) // len(jobs), 1)
    hardware = fleet.hardware
    held = hardware.num_blocks * hardware.tokens_per_block // (prompt + answer)
    batch = max(min(hardware.config.batch_size, held), 1)
    step = hardware.times.seconds(Shape(batch, batch * (prompt + answer // 2), 0, 0))
    reading = hardware.times.seconds(Shape(0, 0, prompt, prompt * prompt // 2))
    return 0.5 * fleet.replicas / (reading + answer * step / batch)


def _told(fleet: Fleet, way: Way) -> str:
    readers = f", {fleet.split.prefill} read" if fleet.split else ""
    return f"{way.tensor} a server, {fleet.replicas} answer{readers}"
