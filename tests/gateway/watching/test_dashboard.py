"""What the dashboard is told, as figures."""

from __future__ import annotations

import pytest

from conch.gateway.watching.dashboard.data import rows
from conch.gateway.watching.dashboard.recorder import Arrivals, Finished, Recorder, percentile
from conch.gateway.watching.dashboard.routes import headers_for


def finished(model: str = "m", variant: str = "", e2e: float = 1.0, usd: float | None = None) -> Finished:
    return Finished(
        at=0.0,
        model=model,
        variant=variant,
        failed=False,
        cancelled=False,
        e2e=e2e,
        ttft=None,
        itl=None,
        queue=0.0,
        prompt_tokens=100,
        cached_tokens=40,
        generated_tokens=100,
        usd=usd,
    )


@pytest.mark.parametrize(
    ("values", "share", "found"),
    [([], 0.5, None), ([3.0], 0.99, 3.0), ([1.0, 2.0, 3.0, 4.0], 0.5, 2.0), ([1.0, 2.0, 3.0, 4.0], 0.95, 4.0)],
)
def test_a_percentile_is_one_of_the_values(values: list[float], share: float, found: float | None) -> None:
    assert percentile(values, share) == found


def test_models_and_variants_have_rows_of_their_own() -> None:
    told = rows([finished("b"), finished("a", "new", 3.0), finished("a", "old"), finished("a", "new", 1.0)])
    assert [(row["model"], row["variant"], row["requests"]) for row in told] == [
        ("a", "new", 2),
        ("a", "old", 1),
        ("b", "", 1),
    ]
    assert told[0]["e2e"] == {"p50": 1.0, "p95": 3.0, "p99": 3.0}
    assert told[0]["ttft"]["p50"] is None


def test_a_price_is_shown_where_there_is_one() -> None:
    assert rows([finished(usd=0.001), finished(usd=0.003)])[0]["usd_per_million_tokens"] == pytest.approx(10.0)
    assert rows([finished()])[0]["usd_per_million_tokens"] is None


def test_rates_are_of_the_time_since_the_point_before() -> None:
    now = 100.0
    recorder = Recorder(Arrivals(), clock=lambda: now)
    now = 102.0
    recorder.sample()
    (point,) = recorder.history
    assert (point.tokens_per_second, point.requests_per_second, point.running, point.waiting) == (0, 0, 0, 0)
    assert point.cpu is None or 0 <= point.cpu <= 1


def test_only_the_pages_own_script_and_style_may_run() -> None:
    policy = headers_for("<style>a{}</style><script>run()</script>")["content-security-policy"]
    assert "script-src 'sha256-" in policy and "style-src 'sha256-" in policy
    assert policy != headers_for("<style>a{}</style><script>other()</script>")["content-security-policy"]
