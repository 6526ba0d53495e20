"""What a key may have a minute and at once."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from conch.gateway.errors import QueueFull, RateLimited
from conch.gateway.keys import limits as key_limits
from conch.gateway.keys.grants import Grant, Key
from conch.gateway.keys.limits import KeyLimits, written
from conch_build.errors import CancelledError, ConchError, DeadlineError, RequestError, ServiceError, UnavailableError
from tests.gateway.apps import client, new_key, running_app

if TYPE_CHECKING:
    from conch_build.pipeline import BuildResult


class Clock:
    """Stands where `time.monotonic` is, and goes when told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@dataclass(eq=False)
class Asked:
    """As much of an exchange as limits look at."""

    key: Key | None
    prompt_tokens: int = 10
    max_tokens: int = 20
    answers: list[Any] = field(default_factory=list)
    error: ConchError | None = None
    first_token_at: float | None = None

    def __post_init__(self) -> None:
        self.request = SimpleNamespace(state=SimpleNamespace(key=self.key))

    @property
    def headers(self) -> dict[str, str]:
        return dict(self.request.state.answer_headers)

    def answered(self, tokens: int) -> None:
        self.first_token_at = 1.0
        self.answers = [SimpleNamespace(prompt_tokens=self.prompt_tokens, completion_tokens=tokens)]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(key_limits, "time", clock)
    return clock


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def limits(registry: CollectorRegistry, clock: Clock) -> KeyLimits:
    return KeyLimits(registry)


def key(**grant: Any) -> Key:
    return Key("0" * 16, Grant("ada", **grant), "", None, None, 0.0, None)


async def test_a_key_without_limits_and_no_key_at_all_are_never_refused(limits: KeyLimits) -> None:
    for one in (None, key()):
        for _ in range(1000):
            await limits.admit(Asked(one))


async def test_requests_beyond_a_minutes_worth_are_refused_and_come_back_evenly(
    limits: KeyLimits, clock: Clock
) -> None:
    ada = key(requests_per_minute=3)
    for left in (2, 1, 0):
        asked = Asked(ada)
        await limits.admit(asked)
        assert asked.headers["x-ratelimit-limit-requests"] == "3"
        assert asked.headers["x-ratelimit-remaining-requests"] == str(left)
        assert "x-ratelimit-limit-tokens" not in asked.headers
    assert asked.headers["x-ratelimit-reset-requests"] == "1m0s"
    with pytest.raises(RateLimited) as caught:
        await limits.admit(Asked(ada))
    assert caught.value.code == "rate_limit_exceeded"
    assert (caught.value.headers["retry-after"], caught.value.headers["retry-after-ms"]) == ("20", "20000")
    clock.now += 20
    await limits.admit(Asked(ada))
    with pytest.raises(RateLimited):
        await limits.admit(Asked(ada))


async def test_tokens_are_charged_for_the_longest_answer_and_settled_for_the_real_one(limits: KeyLimits) -> None:
    ada = key(tokens_per_minute=100)
    asked = Asked(ada, prompt_tokens=10, max_tokens=80)
    await limits.admit(asked)
    assert asked.headers["x-ratelimit-remaining-tokens"] == "10"
    with pytest.raises(RateLimited):
        await limits.admit(Asked(ada, 10, 10))
    asked.answered(5)
    await limits.ended(asked)
    again = Asked(ada, 10, 75)
    await limits.admit(again)
    assert again.headers["x-ratelimit-remaining-tokens"] == "0"


async def test_what_can_never_be_within_the_limit_is_told_so(limits: KeyLimits) -> None:
    with pytest.raises(RateLimited, match="Limit 100 tokens a minute, requested 130") as caught:
        await limits.admit(Asked(key(tokens_per_minute=100), 30, 100))
    assert caught.value.headers == {"x-should-retry": "false"}


@pytest.mark.parametrize(
    "error",
    [
        None,
        ServiceError("x"),
        UnavailableError("x"),
        DeadlineError("x"),
        CancelledError("x"),
        RequestError("x"),
        QueueFull(),
    ],
)
@pytest.mark.parametrize("tokens", [0, 3])
async def test_a_slot_comes_back_however_a_request_ends(
    limits: KeyLimits, registry: CollectorRegistry, error: ConchError | None, tokens: int
) -> None:
    ada = key(parallel=1)
    for _ in range(3):
        asked = Asked(ada)
        await limits.admit(asked)
        assert registry.get_sample_value("conch:key_running_requests", {"key": "ada"}) == 1
        with pytest.raises(RateLimited) as caught:
            await limits.admit(refused := Asked(ada))
        assert int(caught.value.headers["retry-after"]) >= 1
        refused.error = caught.value
        await limits.ended(refused)
        if tokens:
            asked.answered(tokens)
        asked.error = error
        await limits.ended(asked)
    assert registry.get_sample_value("conch:key_running_requests", {"key": "ada"}) == 0
    assert registry.get_sample_value("conch:key_refused_requests_total", {"key": "ada", "limit": "parallel"}) == 3


@pytest.mark.parametrize("error", [QueueFull(), ServiceError("x"), UnavailableError("x"), RequestError("x")])
async def test_refused_requests_use_nothing_up(limits: KeyLimits, error: ConchError) -> None:
    ada = key(requests_per_minute=2, tokens_per_minute=60, parallel=5)
    for _ in range(10):
        asked = Asked(ada)
        await limits.admit(asked)
        asked.error = error
        await limits.ended(asked)
    await limits.admit(Asked(ada))
    await limits.admit(Asked(ada))
    for _ in range(10):
        with pytest.raises(RateLimited):
            await limits.admit(refused := Asked(ada))
        await limits.ended(refused)


async def test_a_client_that_leaves_pays_for_what_it_had(limits: KeyLimits) -> None:
    ada = key(requests_per_minute=2, tokens_per_minute=60)
    for _ in range(2):
        asked = Asked(ada)
        await limits.admit(asked)
        asked.error = CancelledError("gone")
        await limits.ended(asked)
    with pytest.raises(RateLimited):
        limits.begun(Asked(ada))


async def test_one_keys_limits_are_not_anothers(limits: KeyLimits) -> None:
    bob = Key("1" * 16, Grant("bob", parallel=1, requests_per_minute=1), "", None, None, 0.0, None)
    await limits.admit(Asked(key(parallel=1, requests_per_minute=1)))
    await limits.admit(Asked(bob))


@given(st.lists(st.tuples(st.floats(0, 30), st.integers(0, 40), st.integers(0, 40), st.floats(0, 1)), max_size=60))
def test_no_minute_gives_more_than_a_full_bucket_and_a_minutes_worth(
    runs: list[tuple[float, int, int, float]],
) -> None:
    clock, used, ada = Clock(), 0, key(tokens_per_minute=100)

    async def ask_all() -> int:
        nonlocal used
        limits = KeyLimits(CollectorRegistry())
        for pause, prompt, longest, share in runs:
            clock.now += pause
            asked = Asked(ada, prompt, longest)
            try:
                await limits.admit(asked)
            except RateLimited:
                continue
            asked.answered(int(longest * share))
            used += prompt + int(longest * share)
            await limits.ended(asked)
            assert 0 <= int(asked.headers["x-ratelimit-remaining-tokens"]) <= 100
        return used

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_limits, "time", clock)
        assert asyncio.run(ask_all()) <= 100 + (clock.now - 1000) * 100 / 60 + 1e-6


async def test_an_engine_that_is_away_costs_a_key_nothing(sample_build: BuildResult, tmp_path: Path) -> None:
    text = new_key(tmp_path, parallel=1, requests_per_minute=2, tokens_per_minute=5000)
    async with running_app(sample_build, tmp_path) as app, client(app, text) as http:
        for stream in (False, True) * 3:
            answer = await http.post("/v1/completions", json={"prompt": "a", "stream": stream})
            assert answer.status_code == 503
            assert answer.headers["x-ratelimit-remaining-requests"] == "1"
        left = (await http.get("/v1/models")).headers
        assert (left["x-ratelimit-remaining-requests"], left["x-ratelimit-remaining-tokens"]) == ("2", "5000")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0ms"),
        (0.0004, "1ms"),
        (0.12, "120ms"),
        (0.9999, "1s"),
        (1, "1s"),
        (8.64, "8.64s"),
        (59.5, "59.5s"),
        (60, "1m0s"),
        (373.2, "6m13.2s"),
    ],
)
def test_times_are_written_as_openai_writes_them(seconds: float, text: str) -> None:
    assert written(seconds) == text
