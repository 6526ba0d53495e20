"""Speculation behind a running Triton and gateway: several tokens a step, and nothing else that anyone could notice.

The draft is the sample model itself: guesses are right and answers come in pieces of several tokens, as long as the
engine has not found out that such a draft costs more than it saves.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import yaml

from conch.triton import TritonServer
from conch_build.pipeline import BuildResult, build
from conch_build.plan import parse_plan
from tests.conftest import SAMPLE_PLAN, running_triton
from tests.contract.conftest import Gateway, choices, reason_of, running_gateway, text_of
from tests.contract.triton_calls import ask, metric, tokens, wait_until_idle

PROMPT = [1, 9690, 198, 2683]
CHAT = [{"role": "user", "content": "Count from one to twenty in words."}]


@pytest.fixture(scope="module")
def triton(home: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TritonServer, BuildResult]]:
    plan = yaml.safe_load(SAMPLE_PLAN)
    plan["engine"]["speculation"] = {"method": "draft", "checkpoint": "sample", "max_draft_len": 4}
    built = build(parse_plan(yaml.safe_dump(plan)))
    with running_triton(built, tmp_path_factory.mktemp("speculation")) as server:
        yield server, built


@pytest.fixture(scope="module")
def speculating(triton: tuple[TritonServer, BuildResult]) -> Iterator[Gateway]:
    with running_gateway(triton[0], triton[1].engine.path) as gateway:
        yield gateway


def test_ids_are_those_of_the_plain_engine_and_the_guesses_are_told(
    triton: tuple[TritonServer, BuildResult], stack_triton: TritonServer
) -> None:
    for more in ({}, {"runtime_top_p": 0.9, "temperature": 0.8, "seed": 3}, {"repetition_penalty": 1.3}):
        inputs = tokens(PROMPT, 60, streaming=True, end_id=-1, return_perf_metrics=True, **more)
        plain, fast = (ask(url, "tensorrt_llm", inputs) for url in (stack_triton.grpc_url, triton[0].grpc_url))
        assert fast.ids == plain.ids
        told = [fast.array(name) for name in ("total_draft_tokens", "total_accepted_draft_tokens", "acceptance_rate")]
        guessed, accepted, rate = (value.item() for value in told if value is not None)
        assert rate == pytest.approx(accepted / max(1, guessed))
        assert plain.array("total_draft_tokens") == np.zeros((1, 1))
    wait_until_idle(triton[0].metrics_url)
    metrics = triton[0].metrics_url
    assert metric(metrics, "conch_engine_accepted_tokens_total", "model") > 20
    assert metric(metrics, "conch_engine_draft_seconds_total", "model") > 0
    assert metric(metrics, "conch_engine_speculation", 'speculation_type="active"') in (0, 1)


def test_text_reason_usage_and_log_probs_are_those_of_the_plain_engine(speculating: Gateway, gateway: Gateway) -> None:
    """With a stop string from the middle of the answer, and with every length."""
    body: dict[str, Any] = {"messages": CHAT, "temperature": 0, "logprobs": True, "top_logprobs": 2}
    whole = text_of(gateway.ok("chat/completions", max_tokens=40, **body))
    stop = whole[len(whole) // 2 :][:6]
    for length in (*range(1, 12), 40):
        for more in ({"max_tokens": length}, {"max_tokens": length, "stop": stop}):
            for stream in (False, True):
                asked = {**body, **more, "stream": stream}
                plain, fast = (each.ok("chat/completions", **asked) for each in (gateway, speculating))
                assert (text_of(fast), reason_of(fast)) == (text_of(plain), reason_of(plain))
                assert scores(fast) == pytest.approx(scores(plain))
                if not stream:
                    assert fast["usage"]["completion_tokens"] == plain["usage"]["completion_tokens"]


def scores(answer: Any) -> list[float]:
    told = [choice["logprobs"]["content"] for choice in choices(answer) if choice.get("logprobs")]
    return [entry["logprob"] for entries in told for entry in entries]
