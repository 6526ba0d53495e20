"""A client that leaves: its request ends in the engine at once, blocks come back, it is counted once."""

from __future__ import annotations

import httpx
import pytest

from tests.contract.conftest import Gateway, eventually

LONG = {"prompt": "1, 2, 3,", "max_tokens": 1500, "ignore_eos": True}


def aborts(gateway: Gateway) -> float:
    return gateway.metric("vllm:request_success_total", finished_reason="abort")


def is_idle(gateway: Gateway) -> bool:
    return gateway.metric("conch:kv_blocks_used") == 0 and gateway.metric("vllm:num_requests_running") == 0


@pytest.fixture(autouse=True)
def idle(gateway: Gateway) -> None:
    assert eventually(lambda: is_idle(gateway))


def test_leaving_streams_frees_their_blocks(gateway: Gateway) -> None:
    before, prompts = aborts(gateway), gateway.metric("vllm:prompt_tokens_total")
    with httpx.Client(base_url=gateway.url, timeout=60, trust_env=False) as http:
        for _ in range(5):
            with http.stream("POST", "/v1/completions", json={**LONG, "stream": True}) as response:
                lines = response.iter_lines()
                next(lines)
                assert eventually(lambda: gateway.metric("conch:kv_blocks_used") > 0)
    assert eventually(lambda: aborts(gateway) == before + 5)
    assert eventually(lambda: is_idle(gateway), seconds=3)
    assert gateway.metric("vllm:prompt_tokens_total") == prompts + 5 * 9


def test_leaving_whole_answers_frees_their_blocks(gateway: Gateway) -> None:
    before = aborts(gateway)
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{gateway.url}/v1/completions", json=LONG, timeout=0.7, trust_env=False)
    assert eventually(lambda: aborts(gateway) == before + 1, seconds=3)
    assert eventually(lambda: is_idle(gateway), seconds=3)


def test_leaving_ends_every_prompt_of_a_request(gateway: Gateway) -> None:
    before = aborts(gateway)
    body = {**LONG, "prompt": ["1, 2,", "a, b,", "x, y,"], "stream": True}
    with httpx.stream("POST", f"{gateway.url}/v1/completions", json=body, timeout=60, trust_env=False) as response:
        lines = response.iter_lines()
        next(lines)
    assert eventually(lambda: aborts(gateway) == before + 3, seconds=3)
    assert eventually(lambda: is_idle(gateway), seconds=3)


def test_a_stop_string_ends_the_request_in_the_engine_too(gateway: Gateway) -> None:
    assert gateway.ok("completions", prompt="1, 2, 3,", max_tokens=1500, temperature=0, stop=" 6")
    assert eventually(lambda: is_idle(gateway), seconds=3)


def test_counters_agree_with_what_was_answered(gateway: Gateway) -> None:
    names = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total")
    before = [gateway.metric(name) for name in names]
    stops = gateway.metric("vllm:request_success_total", finished_reason="length")
    usage = gateway.ok("completions", prompt=["1, 2,", "a, b,"], max_tokens=7, ignore_eos=True)["usage"]
    after = [gateway.metric(name) for name in names]
    assert after[0] - before[0] == usage["prompt_tokens"]
    assert after[1] - before[1] == usage["completion_tokens"] == 14
    assert gateway.metric("vllm:request_success_total", finished_reason="length") == stops + 2
