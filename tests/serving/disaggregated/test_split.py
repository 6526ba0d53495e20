"""Two real Tritons, one that reads prompts and one that answers: the tokens of one, and no hang whatever breaks."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from conch.client import Sampling
from conch.disaggregated.params import ContextPhaseParams
from conch.gateway.served import Catalog, Served
from conch.gateway.settings import ModelSettings, Server
from conch.gateway.watching.metrics import Metrics, Watch
from conch.gateway.watching.metrics.exposition import engines_of
from tests.conftest import SAMPLE_PLAN, triton_over

if TYPE_CHECKING:
    from conch.triton import TritonServer
    from conch_build.pipeline import BuildResult

SERVING = """
serving:
  disaggregated: {context: {instances: 1}, generation: {instances: 1}, max_local_prefill_length: 64}
  triton: {http_port: 0, grpc_port: 0, metrics_port: 0}
  gateway: {port: 0, database: {url: "sqlite:///%s/gateway.db"}}
"""
PROMPT = [(7 * number) % 4000 + 300 for number in range(200)]
GREEDY = Sampling(max_tokens=24, temperature=0.0, end_ids=())


@pytest.fixture(scope="module")
def reader(sample_build: BuildResult, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    """A Triton that reads prompts, and may be killed."""
    with triton_over(sample_build.repository.path, tmp_path_factory.mktemp("reader")) as server:
        yield server


@dataclass
class Told:
    tokens: int = 0
    text: str = ""
    finish_reason: str | None = None
    log_probs: list[float] | None = None


@asynccontextmanager
async def served(build: BuildResult, readers: list[str], writer: str) -> AsyncIterator[tuple[Served, Metrics]]:
    metrics = Metrics()
    settings = ModelSettings.for_engine(build.engine.path, [Server(writer)], build.repository.path)
    settings = replace(settings, context_servers=tuple(map(Server, readers)), max_local_prefill_length=64)
    model = Served(settings, metrics)
    await model.upstream.probe()
    try:
        yield model, metrics
    finally:
        for pool in model.pools:
            for door in pool.doors:
                await door.close()


async def answer(model: Served, sampling: Sampling, prompt: list[int] = PROMPT, streaming: bool = True) -> Told:
    def watch(tokens: int) -> Watch:
        return Watch(model.metrics, tokens, streaming=streaming, began_at=0.0, on_first=lambda: None)

    (one,) = model.upstream.answers(prompt, sampling, stops=(), streaming=streaming, watch=watch)
    told = Told(log_probs=[])
    async with one:
        async for piece in one:
            told.text += piece.text
            told.finish_reason = piece.finish_reason
            assert told.log_probs is not None
            told.log_probs += [entry.log_prob for entry in piece.log_probs]
    told.tokens = one.completion_tokens
    return told


def outcomes(metrics: Metrics) -> dict[str, float]:
    names = ("split", "whole", "alone")
    name = "conch:disaggregated_requests_total"
    return {one: metrics.registry.get_sample_value(name, {"outcome": one}) or 0.0 for one in names}


@pytest.mark.conforms("SPLIT-1")
@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize(
    "sampling",
    [
        GREEDY,
        replace(GREEDY, temperature=0.9, top_p=0.95, seed=11),
        replace(GREEDY, temperature=0.8, top_k=20, seed=3, repetition_penalty=1.2, frequency_penalty=0.4),
        replace(GREEDY, log_probs=True, top_log_probs=3),
        replace(GREEDY, min_tokens=8, end_ids=None),
        replace(GREEDY, guide=("regex", "[a-f ]{12,20}"), end_ids=None),
        replace(GREEDY, max_tokens=2),
        replace(GREEDY, max_tokens=1),
    ],
    ids=["greedy", "seed", "penalties", "log-probs", "min-tokens", "guide", "two", "one"],
)
async def test_the_answer_is_that_of_one_engine(
    reader: TritonServer, stack_triton: TritonServer, sample_build: BuildResult, sampling: Sampling, streaming: bool
) -> None:
    async with served(sample_build, [], stack_triton.grpc_url) as (alone, _):
        expected = await answer(alone, sampling, streaming=streaming)
    async with served(sample_build, [reader.grpc_url], stack_triton.grpc_url) as (split, metrics):
        told = await answer(split, sampling, streaming=streaming)
        assert outcomes(metrics)["split"] == (sampling.max_tokens > 1)
    assert (told.text, told.tokens, told.finish_reason) == (expected.text, expected.tokens, expected.finish_reason)
    assert told.log_probs == pytest.approx(expected.log_probs, abs=2e-2)


async def test_short_prompts_and_several_answers_stay_where_they_are_written(
    reader: TritonServer, stack_triton: TritonServer, sample_build: BuildResult
) -> None:
    async with served(sample_build, [reader.grpc_url], stack_triton.grpc_url) as (split, metrics):
        await answer(split, GREEDY, prompt=PROMPT[:64])
        assert not any(outcomes(metrics).values())
        await answer(split, GREEDY, prompt=PROMPT[:65])
        assert outcomes(metrics)["split"] == 1


@pytest.mark.conforms("SPLIT-2")
async def test_blocks_that_do_not_come_are_computed_anew(
    reader: TritonServer, stack_triton: TritonServer, sample_build: BuildResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The handle is spoiled on its way, as one whose frame was forgotten would be."""
    async with served(sample_build, [reader.grpc_url], stack_triton.grpc_url) as (split, metrics):
        expected = await answer(split, GREEDY)
        (door,) = split.upstream.pool.doors
        real = door.client.open

        def spoiled(prompt: list[int], sampling: Sampling, **options: Any) -> Any:
            forgotten = b""
            if sampling.context_phase:
                known = ContextPhaseParams.from_bytes(sampling.context_phase)
                forgotten = replace(known, token="00" * 32).to_bytes()
            return real(prompt, replace(sampling, context_phase=forgotten), **options)

        monkeypatch.setattr(door.client, "open", spoiled)
        told = await answer(split, GREEDY)
        assert outcomes(metrics) == {"split": 1, "whole": 0, "alone": 1}
    assert told == expected


@pytest.mark.slow
@pytest.mark.conforms("SPLIT-2")
async def test_a_reader_that_goes_silent_is_not_waited_for(
    reader: TritonServer, stack_triton: TritonServer, sample_build: BuildResult
) -> None:
    """As behind a cut cable: its connection stands, and nothing comes."""
    async with (
        served(sample_build, [reader.grpc_url], stack_triton.grpc_url) as (split, metrics),
        split.upstream.context_pool.watched(),
    ):
        expected = await answer(split, GREEDY)
        assert reader.pid is not None
        os.kill(reader.pid, signal.SIGSTOP)
        try:
            fresh = [[*PROMPT, 300 + number] for number in range(4)]
            told = await asyncio.wait_for(asyncio.gather(*(answer(split, GREEDY, prompt=one) for one in fresh)), 20)
            assert [one.tokens for one in told] == [24] * 4
            assert await asyncio.wait_for(answer(split, GREEDY), 5) == expected  # at once: it is known to be down
        finally:
            os.kill(reader.pid, signal.SIGCONT)
        assert outcomes(metrics) == {"split": 1, "whole": 0, "alone": 5}


@pytest.mark.slow
@pytest.mark.conforms("SPLIT-2")
async def test_a_reader_that_dies_costs_nobody_an_answer(
    reader: TritonServer, stack_triton: TritonServer, sample_build: BuildResult
) -> None:
    async with served(sample_build, [reader.grpc_url], stack_triton.grpc_url) as (split, metrics):
        expected = await answer(split, GREEDY)
        asking = [asyncio.ensure_future(answer(split, GREEDY, prompt=[*PROMPT, 300 + n])) for n in range(8)]
        await asyncio.sleep(0.15)
        assert reader.pid is not None
        os.kill(reader.pid, signal.SIGKILL)
        results = await asyncio.wait_for(asyncio.gather(*asking, return_exceptions=True), 60)
        assert all(isinstance(result, Told) and result.tokens == 24 for result in results), results
        assert await answer(split, GREEDY) == expected
        assert outcomes(metrics)["alone"] > 0
    restarted = threading.Event()
    reader.on_change(lambda state: restarted.set() if state.value == "ready" else None)
    assert restarted.wait(60)


async def test_the_figures_of_both_kinds_of_engines_are_told_apart(
    reader: TritonServer, stack_triton: TritonServer, sample_build: BuildResult
) -> None:
    async with served(sample_build, [reader.grpc_url], stack_triton.grpc_url) as (split, _):
        ((name, urls),) = engines_of(Catalog([split]))
    assert (name, list(urls)) == ("smollm2", ["0", "context-0"])


@pytest.mark.slow
def test_conch_serve_starts_both_kinds_and_a_long_prompt_goes_through_both(
    sample_build: BuildResult, tmp_path: Path
) -> None:
    plan = tmp_path / "conch.yaml"
    plan.write_text(SAMPLE_PLAN + SERVING % tmp_path)
    command = [sys.executable, "-m", "conch.cli", "serve", str(plan), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            told = json.loads("".join(iter(process.stdout.readline, "}\n")) + "}")
            body = {"model": "smollm2", "prompt": "one two three " * 60, "max_tokens": 8, "ignore_eos": True}
            answer = httpx.post(f"{told['gateway']}/v1/completions", json=body, timeout=60)
            assert answer.json()["usage"]["completion_tokens"] == 8
            metrics = httpx.get(f"{told['gateway']}/metrics").text
        finally:
            process.terminate()
            process.wait(60)
    assert len(told["replicas"]) == 2
    assert 'conch:disaggregated_requests_total{outcome="split"} 1.0' in metrics
