"""What came of a simulated run: one flat row, and what gave way first where it was too much. Pure."""

from __future__ import annotations

from collections import Counter
from statistics import fmean
from typing import Any

from conch.bench.traffic.measures import spread
from conch.bench.traffic.record import Record
from conch.bench.traffic.slo import SHARE, Limits
from conch.simulation.fleet import Fleet, Outcome
from conch.simulation.jobs import Job
from conch_build.cost import Price, usd_per_million

GATEWAY_TOKENS_S = 12_000.0
"""Of one gateway process on one core, as streams: 81 us of CPU a token, measured at 32 streams on a Zen 4."""
_FULL = 0.9
"""Of a link or a gateway: above, what waits for it grows without bound."""

_CROWDED = 0.6
"""Mean share of blocks, or of places, from which on who waits is waiting for one."""

RESOURCES = ("transfer", "kv", "queue", "prefill", "decode", "failures")
"""`kv`: blocks were short; `queue`: places in batches were; `prefill`, `decode`: the steps themselves took too long."""


def figures(fleet: Fleet, outcome: Outcome, limits: Limits | None, server_price: Price | None) -> dict[str, Any]:
    """`server_price`: of one server, with all GPUs that it spans."""
    jobs = outcome.jobs
    answered = [job for job in jobs if job.error is None]
    seconds = max(outcome.seconds, 1e-9)
    use, reading = outcome.use, outcome.prefill_use
    tokens = use.tokens + reading.tokens
    latencies = {
        "ttft": spread([1e3 * (job.first - job.due) for job in answered]),
        "tpot": spread([1e3 * per_token for job in answered if (per_token := _tpot(job)) is not None]),
        "e2e": spread([1e3 * (job.last - job.due) for job in answered]),
        "itl": {
            "mean": _ms(use.gaps.mean),
            **{f"p{share}": _ms(use.gaps.percentile(share / 100)) for share in (50, 90, 95, 99)},
        },
    }
    good = sum(limits.kept(_record(job)) for job in jobs) / len(jobs) if limits and jobs else None
    usd = server_price.usd(outcome.server_seconds) if server_price else None
    return {
        "requests": len(jobs),
        "answered": len(answered),
        "errors": dict(Counter(job.error for job in jobs if job.error)),
        "seconds": outcome.seconds,
        "requests_per_second": len(answered) / seconds,
        "tokens_per_second": tokens / seconds,
        "input_tokens_per_second": sum(len(job.prompt) for job in answered) / seconds,
        **{f"{name}_{share}_ms": value for name, values in latencies.items() for share, value in values.items()},
        "good_share": good,
        "slo_met": None if good is None else good >= SHARE,
        **_parts(answered),
        "prefix_hit_share": sum(job.cached for job in answered) / max(sum(len(job.prompt) for job in answered), 1),
        "busy_share": (use.busy + reading.busy) / max(outcome.server_seconds, 1e-9),
        "prompt_share": (use.prompts + reading.prompts) / max(use.busy + reading.busy, 1e-9),
        "kv_share": use.kv / max(use.busy, 1e-9),
        "batch_share": use.places / max(use.busy, 1e-9),
        "preemptions": use.preemptions,
        "link_share": outcome.link_seconds / (seconds * fleet.split.prefill) if fleet.split else None,
        "peak_waiting": outcome.peak_waiting,
        "gateways": tokens / seconds / (GATEWAY_TOKENS_S * _FULL),
        "servers": fleet.replicas + (fleet.split.prefill if fleet.split else 0),
        "most_servers": outcome.most_servers,
        "server_seconds": outcome.server_seconds,
        "deaths": outcome.deaths,
        "began_anew": sum(job.began_anew for job in jobs),
        "usd": usd,
        "usd_per_million_tokens": usd_per_million(usd, tokens + sum(len(j.prompt) for j in answered)) if usd else None,
    }


def weakest(row: dict[str, Any], outcome: Outcome, limits: Limits) -> str:
    """The resource that gave way first in a run that broke its limits, one of RESOURCES."""
    if (row["link_share"] or 0.0) > _FULL:
        return "transfer"
    bad = [job for job in outcome.jobs if job.error or not limits.kept(_record(job))] or outcome.jobs
    if 2 * row["errors"].get("server died", 0) > len(bad):
        return "failures"
    late = [job for job in bad if job.error or job.first - job.due > limits.seconds.get("ttft", float("inf"))]
    if 2 * len(late) < len(bad):  # most began in time
        slow = outcome.use.prompts / max(outcome.use.busy, 1e-9)
        return "prefill" if slow > 0.5 else "decode"
    parts = _parts([job for job in late if job.error is None])
    waits = {name: parts[f"{name}_mean_ms"] or 0.0 for name in ("line", "server", "prompt", "transfer")}
    if any(job.error for job in late):
        waits["line"] = float("inf")
    longest = max(waits, key=lambda name: waits[name])
    if longest in ("line", "server"):
        use = outcome.use
        if outcome.prefill_use.steps and outcome.prefill_use.busy > _FULL * outcome.seconds * row["servers"]:
            return "prefill"
        if max(row["kv_share"], row["batch_share"]) < _CROWDED:
            return "prefill"
        return "kv" if row["kv_share"] > row["batch_share"] or use.short_of_kv > use.short_of_places else "queue"
    return "transfer" if longest == "transfer" else "prefill"


def _parts(jobs: list[Job]) -> dict[str, float | None]:
    """Of the time to the first token: in the gateway's line, in an engine's, being computed; and what travelled."""

    def mean(values: list[float]) -> float | None:
        return 1e3 * fmean(values) if values else None

    return {
        "line_mean_ms": mean([job.admitted - job.due for job in jobs]),
        "server_mean_ms": mean([job.scheduled - job.admitted for job in jobs]),
        "prompt_mean_ms": mean([job.first - job.scheduled for job in jobs]),
        "transfer_mean_ms": mean([job.moved for job in jobs]),
    }


def _tpot(job: Job) -> float | None:
    return (job.last - job.first) / (job.answer - 1) if job.answer > 1 else None


def _record(job: Job) -> Record:
    """As a client would have kept it."""
    arrivals = [job.first, job.last] if job.produced > 1 else [job.first]
    return Record(job.number, "", job.due, arrivals=arrivals, ended=job.last, tokens=job.produced, error=job.error)


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1e3 * seconds
