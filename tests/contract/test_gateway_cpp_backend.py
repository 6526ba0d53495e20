"""The gateway before a `tensorrt_llm` that has upstream's tensors alone, as TensorRT-LLM's C++ backend has.

The engine behind it is the CPU's; every tensor of Conch's own is taken out of the repository, so that Triton itself
refuses a request that names one.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import openai
import pytest

from conch import AsyncClient
from conch.client.cpp_backend import CppBackend
from conch_build.errors import RequestError, UnsupportedError
from conch_build.manifest import (
    TOKENIZER_DIR,
    EngineManifest,
    EngineQuantization,
    GpuAdapter,
    GpuEngineManifest,
    GpuKvCache,
    GpuLimits,
    GpuLora,
)
from conch_build.pack.configs import CONFIG, read_config, render, without_own_tensors
from tests.conftest import triton_over
from tests.contract.conftest import Gateway, running_gateway, text_of

if TYPE_CHECKING:
    from conch.triton import TritonServer
    from conch_build.pipeline import BuildResult

IDS = [1, 33, 28, 216, 34, 28]


@pytest.fixture(scope="module")
def upstreams(sample_build: BuildResult, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    """A Triton whose models have no tensor of Conch's own."""
    repository = tmp_path_factory.mktemp("upstream") / "repository"
    shutil.copytree(sample_build.repository.path / "tensorrt_llm", repository / "tensorrt_llm")
    path = repository / "tensorrt_llm" / CONFIG
    config = read_config(path)
    without_own_tensors(config)
    path.write_text(render(config), encoding="utf-8")
    assert "conch_" not in path.read_text().replace("conch_build", "")
    with triton_over(repository, repository.parent) as server:
        yield server


@pytest.fixture(scope="module")
def cpp(
    upstreams: TritonServer, sample_build: BuildResult, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    """A gateway that takes its engine for one of the backend `tensorrt`."""
    real = EngineManifest.load(sample_build.engine.path)
    folder = tmp_path_factory.mktemp("engine")
    (folder / TOKENIZER_DIR).symlink_to(sample_build.engine.path / TOKENIZER_DIR)
    GpuEngineManifest(
        name=real.name,
        backend="tensorrt",
        tensorrt_llm="1.2.1",
        container="image",
        gpu="h100",
        architecture=real.architecture,
        dtype="bfloat16",
        vocab_size=real.vocab_size,
        end_ids=real.end_ids,
        bos_id=real.bos_id,
        pad_id=real.pad_id,
        limits=GpuLimits(
            max_batch_size=real.max_batch_size,
            max_num_tokens=real.max_num_tokens,
            max_seq_len=real.max_seq_len,
            max_queue_size=real.max_queue_size,
            chunked_prefill=True,
        ),
        quantization=EngineQuantization(format="int8"),
        kv_cache=GpuKvCache(dtype="bfloat16", tokens_per_block=32, reuse=True),
        lora=GpuLora(max_rank=8, target_modules=["attn_q"], adapters=[GpuAdapter(name="legal", id=1)]),
    ).save(folder)
    with running_gateway(upstreams, folder) as gateway:
        yield gateway


@pytest.fixture
def backend(sample_build: BuildResult) -> CppBackend:
    real = EngineManifest.load(sample_build.engine.path)
    return CppBackend(tuple(real.end_ids), real.vocab_size, 32)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "body",
    [
        {"messages": [{"role": "user", "content": "Say hi"}], "max_tokens": 40, "temperature": 0},
        {"messages": [{"role": "user", "content": "Say hi"}], "max_tokens": 5, "temperature": 0},
        {"messages": [{"role": "user", "content": "A tale."}], "max_tokens": 30, "seed": 5, "top_p": 0.9},
        {"messages": [{"role": "user", "content": "1, 2, 3"}], "max_tokens": 30, "temperature": 0, "stop": [","]},
        {
            "messages": [{"role": "user", "content": "Say hi"}],
            "max_tokens": 6,
            "temperature": 0,
            "logit_bias": {"1000": 100},
        },
    ],
)
def test_answers_reasons_and_usage_are_those_of_conchs_own_model(
    cpp: Gateway, gateway: Gateway, body: dict[str, object], stream: bool
) -> None:
    asked = {"model": "smollm2", **body, "stream": stream}
    if stream:
        asked["stream_options"] = {"include_usage": True}
    told = []
    for each in (gateway, cpp):
        answer = each.ok("chat/completions", **asked)
        last = answer[-1] if stream else answer
        reasons = [c["finish_reason"] for e in (answer if stream else [answer]) for c in e["choices"]]
        told.append((text_of(answer), [r for r in reasons if r], last["usage"]["completion_tokens"]))
    (text, reason, tokens), (other, other_reason, other_tokens) = told
    assert (text, reason) == (other, other_reason)
    # Conch's own models count the id that ends an answer; upstream's do not say whether they give it.
    assert tokens - other_tokens in ((0, 1) if reason == ["stop"] else (0,))


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"min_p": 0.1}, "min_p"),
        ({"logprobs": True, "top_logprobs": 2}, "top_logprobs"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
        ({"n": 2}, "n"),
        ({"priority": 3}, "priority"),
    ],
)
def test_what_upstreams_tensors_cannot_say_is_refused_by_name(
    cpp: Gateway, body: dict[str, object], param: str
) -> None:
    asked = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, **body}
    assert cpp.refused("chat/completions", **asked)["param"] == param


def test_log_probs_of_the_chosen_tokens_are_given(cpp: Gateway) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "temperature": 0, "logprobs": True}
    entries = cpp.ok("chat/completions", **body)["choices"][0]["logprobs"]["content"]
    assert len(entries) == 4 and all(entry["logprob"] <= 0 and not entry["top_logprobs"] for entry in entries)


def test_ready_models_and_adapters_are_told_without_asking_for_tensors_it_lacks(cpp: Gateway) -> None:
    assert cpp.http.get("/health/ready").status_code == 200
    assert [card["id"] for card in cpp.http.get("/v1/models").json()["data"]] == ["smollm2", "legal"]
    refused = cpp.http.post("/v1/load_lora_adapter", json={"lora_name": "legal"})
    assert refused.status_code == 400 and "built with its adapters" in refused.text


def test_the_sdk_streams_a_chat(cpp: Gateway) -> None:
    client = openai.OpenAI(base_url=f"{cpp.url}/v1", api_key="none", max_retries=0)
    events = list(
        client.chat.completions.create(
            model="smollm2", messages=[{"role": "user", "content": "Hi"}], max_tokens=8, stream=True
        )
    )
    assert events[-1].choices[0].finish_reason == "length"


async def test_several_end_ids_end_an_answer_and_are_no_part_of_it(
    upstreams: TritonServer, backend: CppBackend
) -> None:
    async with AsyncClient(upstreams.grpc_url, backend=backend) as client:
        assert not await client.use_feed()
        free = await client.generate(IDS, max_tokens=12, temperature=0.0, end_ids=())
        assert free.finish_reason == "length" and len(free.tokens) == 12
        for end_ids in ((free.tokens[5],), (49_000, free.tokens[5])):
            ended = await client.generate(IDS, max_tokens=12, temperature=0.0, end_ids=end_ids)
            first = free.tokens.index(free.tokens[5])
            assert (ended.finish_reason, ended.tokens) == ("stop", free.tokens[:first])
        with pytest.raises(UnsupportedError, match="one answer a request"):
            client.stream(IDS, n=2)
        with pytest.raises(RequestError):
            await client.generate([], max_tokens=3)


async def test_leaving_a_stream_cancels(upstreams: TritonServer, backend: CppBackend) -> None:
    from tests.contract.triton_calls import wait_until_idle

    async with AsyncClient(upstreams.grpc_url, backend=backend) as client:
        async with client.stream(IDS, max_tokens=1500, end_ids=()) as stream:
            await stream.__anext__()
        await client.probe()
    await asyncio.to_thread(wait_until_idle, upstreams.metrics_url)
