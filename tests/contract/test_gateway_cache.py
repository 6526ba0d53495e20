"""Answers given again, and two gateways that share limits: real processes before a real engine, with a real Redis."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import openai
import pytest

from tests.contract.conftest import Gateway, running_gateway
from tests.gateway.apps import new_key
from tests.gateway.redis_server import RedisServer, running_redis

if TYPE_CHECKING:
    from conch.triton import TritonServer
    from conch_build.pipeline import BuildResult

PLAN = """
name: smollm2
model: {checkpoint: sample}
serving:
  gateway:
    redis: {url: "%s"}
    cache: {ttl: 60s, answer_bytes: 4KiB}
    database: {url: "sqlite:///%s/gateway.db"}
"""
SAME = {"model": "smollm2", "prompt": "1, 2, 3,", "max_tokens": 8, "temperature": 0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def redis(folder: Path) -> Iterator[RedisServer]:
    with running_redis(folder) as server:
        yield server


@pytest.fixture(scope="module")
def pair(
    stack_triton: TritonServer, sample_build: BuildResult, redis: RedisServer, folder: Path
) -> Iterator[tuple[Gateway, Gateway]]:
    """Two gateways before one engine, with one database and one Redis."""
    plan = folder / "conch.yaml"
    plan.write_text(PLAN % (redis.url, folder))
    options = (stack_triton, sample_build.engine.path, "--plan", str(plan))
    with running_gateway(*options) as one, running_gateway(*options) as two:
        time.sleep(1.2)  # until both have found it
        yield one, two


def ask(gateway: Gateway, **body: Any) -> httpx.Response:
    response = gateway.http.post("/v1/completions", json={**SAME, **body})
    assert response.status_code == 200
    return response


@pytest.mark.conforms("CACHE-1")
def test_the_same_request_gets_the_same_answer_without_the_engine_from_whichever_gateway(
    pair: tuple[Gateway, Gateway],
) -> None:
    one, two = pair
    first, again = ask(one), ask(two, user="somebody else")
    assert (first.headers["x-conch-cache"], again.headers["x-conch-cache"]) == ("miss", "hit")
    fresh, kept = first.json(), again.json()
    assert kept["choices"] == fresh["choices"]
    assert kept["id"] != fresh["id"]
    assert kept["usage"]["prompt_tokens_details"]["cached_tokens"] == kept["usage"]["prompt_tokens"]
    assert kept["usage"]["completion_tokens"] == fresh["usage"]["completion_tokens"] == 8
    assert 'conch:cache_requests_total{result="hit"} 1.0' in two.http.get("/metrics").text


@pytest.mark.conforms("CACHE-1")
def test_streams_are_given_again_as_streams(pair: tuple[Gateway, Gateway]) -> None:
    client = openai.OpenAI(base_url=f"{pair[0].url}/v1", api_key="none")
    told = []
    for _ in range(2):
        with client.chat.completions.with_streaming_response.create(
            model="smollm2",
            messages=[{"role": "user", "content": "Say hi"}],
            max_tokens=12,
            seed=7,
            stream=True,
            stream_options={"include_usage": True},
        ) as response:
            lines = [line for line in response.iter_lines() if line]
            told.append((response.headers["x-conch-cache"], lines))
    (missed, fresh), (hit, kept) = told
    assert (missed, hit) == ("miss", "hit")
    assert fresh[-1] == kept[-1] == "data: [DONE]"
    events = [[json.loads(line[6:]) for line in lines[:-1]] for lines in (fresh, kept)]
    assert [event["choices"] for event in events[0]] == [event["choices"] for event in events[1]]
    assert {event["id"] for event in events[0]} != {event["id"] for event in events[1]}
    usage = events[1][-1]["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"]


@pytest.mark.conforms("CACHE-2")
@pytest.mark.parametrize(
    "body",
    [
        {"temperature": 1.0},
        {"prompt": "1, 2, 3, "},
        {"max_tokens": 9},
        {"stream": True},
        {"seed": 1},
        {"stop": ["5"]},
        {"logprobs": 1},
    ],
)
def test_whatever_the_answer_depends_on_makes_another_request(
    pair: tuple[Gateway, Gateway], body: dict[str, Any]
) -> None:
    ask(pair[0])
    assert ask(pair[0], **body).headers.get("x-conch-cache", "miss") == "miss"


@pytest.mark.conforms("CACHE-2")
def test_what_was_cut_off_or_is_too_long_is_not_kept(pair: tuple[Gateway, Gateway]) -> None:
    long = {"max_tokens": 1500, "ignore_eos": True, "prompt": "Cut."}
    with pair[0].http.stream("POST", "/v1/completions", json={**SAME, **long, "stream": True}) as response:
        next(response.iter_lines())
    assert ask(pair[0], **{**long, "max_tokens": 1}).headers["x-conch-cache"] == "miss"
    for _ in range(2):
        wordy = ask(pair[0], prompt="One, two,", max_tokens=100, logprobs=5, ignore_eos=True)
        assert len(wordy.content) > 4096
        assert wordy.headers["x-conch-cache"] == "miss"


@pytest.mark.conforms("CACHE-3", "LIMIT-4")
def test_keys_do_not_share_answers_and_have_their_limits_once_and_all_goes_on_without_redis(
    pair: tuple[Gateway, Gateway], redis: RedisServer, folder: Path
) -> None:
    one, two = pair
    ada, bob = ({"authorization": f"Bearer {new_key(folder, name, requests_per_minute=4)}"} for name in ("ada", "bob"))
    time.sleep(1.5)
    assert one.http.post("/v1/completions", json=SAME).status_code == 401
    for key in (ada, bob):
        assert one.http.post("/v1/completions", json=SAME, headers=key).headers["x-conch-cache"] == "miss"
        assert two.http.post("/v1/completions", json=SAME, headers=key).headers["x-conch-cache"] == "hit"
    other = {**SAME, "temperature": 1}
    statuses = [gateway.http.post("/v1/completions", json=other, headers=ada).status_code for gateway in pair * 3]
    assert statuses == [200, 200, 200, 429, 429, 429]
    redis.stop()
    began = time.monotonic()
    alone = one.http.post("/v1/completions", json=SAME, headers=bob)
    assert alone.status_code == 200 and alone.headers["x-conch-cache"] == "miss"
    assert time.monotonic() - began < 5
    redis.start()
