"""Operation: a running gateway is asked for its health, a short answer, and its figures, which the SLO is held to."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from conch.checklist.points import Point, person, seen, unseen
from conch.remote import gateway_url, refusal
from conch_build.errors import ConchError, UnavailableError
from conch_build.plan import Plan

if TYPE_CHECKING:
    import httpx

SHARE = 0.95
_ENOUGH = 20
"""Streams and responses, before a share of them says anything."""
_FAILING = 0.02
_ENGINE = "vllm:num_requests_running"
_HISTOGRAMS = {"ttft_p95": "vllm:time_to_first_token_seconds", "itl_p95": "vllm:inter_token_latency_seconds"}


@dataclass
class Told:
    """The samples of a gateway's /metrics."""

    samples: list[tuple[str, Mapping[str, str], float]] = field(default_factory=list)

    @property
    def names(self) -> set[str]:
        return {name for name, _, _ in self.samples}

    def total(self, name: str, **labels: str) -> float:
        return sum(value for at, own, value in self.samples if at == name and labels.items() <= own.items())

    def buckets(self, name: str, model: str) -> dict[float, float]:
        """Upper bound in seconds -> how many were within it."""
        found: dict[float, float] = defaultdict(float)
        for at, labels, value in self.samples:
            if at == f"{name}_bucket" and labels.get("model_name") == model and not labels.get("variant"):
                found[float(labels["le"])] += value
        return dict(found)


def operation(plan: Plan, url: str | None, key: str | None, told: Told) -> Iterator[Point]:
    """`told` is filled with what /metrics tells. Asks the model for one answer of a few tokens."""
    if url is None:
        yield unseen("gateway.running", "no running gateway was named", "Give --url, as http://127.0.0.1:8080.")
    else:
        yield from _asked(plan, gateway_url(url), key, told)
    yield person(
        "operate.receiver", "Load rules and dashboard into Prometheus and Grafana; see one alert reach somebody."
    )
    yield person("operate.kill", "Kill the server once under load: what do callers see, who notices, when is it back?")
    yield person("operate.capacity", "Know at which traffic the next replica is due: `conch bench --ramp rate`.")
    yield person("operate.upgrade", "Rehearse an upgrade: `conch eval` and `conch bench compare`, old against new.")


def _asked(plan: Plan, url: str, key: str | None, told: Told) -> Iterator[Point]:
    import httpx

    headers = {"Authorization": f"Bearer {key}"} if key else {}
    with httpx.Client(base_url=url, headers=headers, timeout=60, trust_env=False) as http:
        try:
            live = http.get("/health/live").status_code == 200
        except httpx.HTTPError as error:
            yield seen("gateway.live", False, f"no gateway answers at {url}: {error}", "`conch serve` starts one.")
            return
        yield seen("gateway.live", live, url, f"What listens at {url} is no gateway of Conch.")
        if not live:
            return
        try:
            yield from _answering(plan, http)
            yield from _figures(plan, http, told)
        except httpx.HTTPError as error:
            raise UnavailableError(f"stopped answering: {error}", where=url) from None


def _answering(plan: Plan, http: httpx.Client) -> Iterator[Point]:
    ready = http.get("/health/ready")
    yield seen("gateway.ready", ready.status_code == 200, ready.text[:200], "See the gateway's log and Triton's.")
    body = {"model": plan.name, "prompt": "Hello", "max_tokens": 4, "temperature": 0}
    answer = http.post("/v1/completions", json=body)
    if answer.status_code == 200:
        used = answer.json()["usage"]
        yield seen("gateway.answers", True, f"{plan.name} gave {used['completion_tokens']} token(s)")
    else:
        error: ConchError = refusal(answer.status_code, answer.content, str(http.base_url))
        fix = "A key goes in the variable that --api-key-env names." if answer.status_code in (401, 403) else error.fix
        yield seen("gateway.answers", False, error.message, fix)


def _figures(plan: Plan, http: httpx.Client, told: Told) -> Iterator[Point]:
    from prometheus_client.parser import text_string_to_metric_families

    answer = http.get("/metrics")
    if answer.status_code != 200:
        fix = "Give a key with the scope `metrics` by --api-key-env; Prometheus needs one, too."
        yield seen("metrics.told", False, f"/metrics answers {answer.status_code}", fix)
        return
    families = text_string_to_metric_families(answer.text)
    told.samples = [(one.name, one.labels, one.value) for family in families for one in family.samples]
    engine = _ENGINE in told.names
    what = f"{len(told.names)} kinds of figures" if engine else "the engine's figures are not among them"
    yield seen("metrics.told", engine, what, "Triton's metrics port must be reached from the gateway.")
    yield _failures(told)
    for name, histogram in _HISTOGRAMS.items():
        limit = getattr(plan.slo, name)
        if limit is not None:
            yield held(f"slo.{name}", told.buckets(histogram, plan.name), limit)


def _failures(told: Told) -> Point:
    responses = told.total("conch:http_responses_total")
    failed = sum(
        value
        for name, labels, value in told.samples
        if name == "conch:http_responses_total" and labels["status"].startswith("5")
    )
    what = f"{failed:.0f} of {responses:.0f} responses since its start were failures"
    if responses < _ENOUGH:
        return unseen("gateway.failures", what, f"Ask again after {_ENOUGH} requests.")
    return seen("gateway.failures", failed <= _FAILING * responses, what, "See conch:request_errors_total by kind.")


def held(id: str, buckets: Mapping[float, float], limit: float) -> Point:
    """Whether the share of a histogram that an SLO asks for was within its limit, as far as its bounds tell."""
    count = buckets.get(math.inf, 0.0)
    if count < _ENOUGH:
        return unseen(id, f"{count:.0f} streamed so far", f"Ask again after {_ENOUGH}, or give --bench.")
    least = max((buckets[bound] for bound in buckets if bound <= limit), default=0.0) / count
    most = min(buckets[bound] for bound in buckets if bound >= limit) / count
    if least >= SHARE:
        return seen(id, True, f"{least:.1%} within {limit:g} s")
    if most < SHARE:
        return seen(id, False, f"at most {most:.1%} within {limit:g} s", "Add a replica, or let fewer in at once.")
    return unseen(id, f"{least:.1%} to {most:.1%} within {limit:g} s", "`conch bench --plan` measures it exactly.")
