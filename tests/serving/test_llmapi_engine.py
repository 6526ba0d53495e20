"""The engine over the LLM API, with a package in its place that counts; its names are the real one's."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from conch.backend.llmapi.engine import LlmApiEngine
from conch.backend.llmapi.loading import CHECKPOINT_DIR, LLM_ARGS_FILE, load_engine
from conch.engine.guide import Guide
from conch.engine.request import Output, Request, SamplingParams
from conch_build.adapter_registry import AdapterRegistry, RegisteredAdapter
from conch_build.errors import (
    NotFoundError,
    OverloadedError,
    RequestError,
    ServiceError,
    SetupError,
    UnavailableError,
    UnsupportedError,
)
from conch_build.manifest import (
    EngineQuantization,
    GpuEngineManifest,
    GpuKvCache,
    GpuLimits,
)

STANDIN = Path(__file__).parent / "standin"
GREEDY = SamplingParams(temperature=0.0)


def write_engine(folder: Path, **args: Any) -> Path:
    """What a build of the backend `pytorch` leaves behind, without weights."""
    limits = GpuLimits(max_batch_size=4, max_num_tokens=512, max_seq_len=600, max_queue_size=2, chunked_prefill=True)
    manifest = GpuEngineManifest(
        name="counting",
        backend="pytorch",
        tensorrt_llm="1.2.1",
        container="image",
        gpu="h100",
        architecture="LlamaForCausalLM",
        dtype="bfloat16",
        vocab_size=1000,
        end_ids=[900, 950],
        bos_id=None,
        pad_id=0,
        limits=limits,
        quantization=EngineQuantization(format="none"),
        kv_cache=GpuKvCache(dtype="bfloat16", tokens_per_block=64, reuse=True),
    )
    folder.mkdir(exist_ok=True)
    manifest.save(folder)
    (folder / CHECKPOINT_DIR).mkdir()
    arguments = {"guided_decoding_backend": "xgrammar", **args}
    (folder / LLM_ARGS_FILE).write_text(yaml.safe_dump(arguments), encoding="utf-8")
    return folder


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The stand-in for `tensorrt_llm` can be imported, and nothing of it stays."""
    monkeypatch.syspath_prepend(str(STANDIN))
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "tensorrt_llm"]:
        del sys.modules[name]


@pytest.fixture
def load(package: None, tmp_path: Path) -> Iterator[Callable[..., LlmApiEngine]]:
    engines: list[LlmApiEngine] = []

    def make(registry: AdapterRegistry | None = None, **args: Any) -> LlmApiEngine:
        engines.append(load_engine(write_engine(tmp_path / f"engine{len(engines)}", **args), registry))
        return engines[-1]

    yield make
    for engine in engines:
        if engine.healthy():
            engine.close()


@pytest.fixture
def engine(load: Callable[..., LlmApiEngine]) -> LlmApiEngine:
    return load()


class Sink:
    """Collects outputs until the request is over."""

    def __init__(self) -> None:
        self.outputs: list[Output] = []
        self._over = threading.Event()
        self._begun = threading.Event()

    def __call__(self, output: Output) -> None:
        self.outputs.append(output)
        if output.tokens:
            self._begun.set()
        if output.final:
            self._over.set()

    def wait(self) -> Sink:
        assert self._over.wait(20), "the request does not end"
        return self

    def wait_for_first(self) -> None:
        assert self._begun.wait(20)

    def tokens(self, index: int = 0) -> list[int]:
        return [token for output in self.outputs if output.index == index for token in output.tokens]

    @property
    def last(self) -> Output:
        return self.outputs[-1]


def ask(engine: LlmApiEngine, prompt: list[int] | None = None, max_tokens: int = 4, **parts: Any) -> Sink:
    sink = Sink()
    request = Request(parts.pop("id", "r"), prompt or [10], max_tokens, **{"sampling": GREEDY, **parts})
    engine.submit(request, sink)
    return sink


def test_the_yaml_is_read_as_trtllm_serve_reads_it(load: Callable[..., LlmApiEngine]) -> None:
    import tensorrt_llm  # type: ignore[import-not-found]

    given: list[dict[str, Any]] = []
    made = tensorrt_llm.LLM.__init__

    def seen(self: Any, **arguments: Any) -> None:
        given.append(arguments)
        made(self, **arguments)

    tensorrt_llm.LLM.__init__ = seen
    load(speculative_config={"decoding_type": "NGram", "max_draft_len": 4}, max_batch_size=8)
    config = given[0]["speculative_config"]
    assert (config.kind, config.max_draft_len, given[0]["max_batch_size"]) == ("NGram", 4, 8)


def test_an_answer_streams_and_its_last_output_says_how_it_ended(engine: LlmApiEngine) -> None:
    sink = ask(engine).wait()
    assert sink.tokens() == [11, 12, 13, 14]
    assert len(sink.outputs) == 4
    assert (sink.last.finish_reason, sink.last.final) == ("length", True)
    usage = sink.last.usage
    assert usage and (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (1, 4, 3)
    assert (usage.draft_tokens, usage.accepted_tokens, usage.reused_blocks) == (8, 6, 1)


@pytest.mark.parametrize(("start", "expected"), [(897, [898, 899]), (948, [949])])
def test_every_end_id_of_the_model_ends_an_answer(engine: LlmApiEngine, start: int, expected: list[int]) -> None:
    sink = ask(engine, [start], 50).wait()
    assert (sink.tokens(), sink.last.finish_reason) == (expected, "stop")


def test_an_answer_without_end_ids_goes_on(engine: LlmApiEngine) -> None:
    params = SamplingParams(temperature=0.0, end_ids=frozenset())
    assert ask(engine, [899], 3, sampling=params).wait().tokens() == [900, 901, 902]


def test_stop_words_of_any_length_end_an_answer_and_the_llm_api_is_told_to_stop(engine: LlmApiEngine) -> None:
    params = SamplingParams(temperature=0.0, stop_words=((13, 14), (40,)))
    sink = ask(engine, max_tokens=500, sampling=params).wait()
    assert (sink.tokens(), sink.last.finish_reason) == ([11, 12, 13, 14], "stop")
    assert engine._api._llm.aborted == 1  # type: ignore[attr-defined]
    assert ask(engine, [38], 500, sampling=params).wait().tokens() == [39, 40]
    assert engine._api._llm.aborted == 1  # type: ignore[attr-defined]


def test_tokens_that_come_together_are_sent_together(load: Callable[..., LlmApiEngine]) -> None:
    sink = ask(load(stream_interval=3), max_tokens=7).wait()
    assert [len(output.tokens) for output in sink.outputs] == [3, 3, 1]


def test_several_answers_each_have_their_own_request_and_end_alone(load: Callable[..., LlmApiEngine]) -> None:
    engine = load(sampler_type="TRTLLMSampler")
    sink = ask(engine, n=3, sampling=SamplingParams(seed=7)).wait()
    assert [sink.tokens(index) for index in range(3)] == [[11, 12, 13, 14]] * 3
    assert [output.final for output in sink.outputs if output.finish_reason] == [False, False, True]
    asked = engine._api._llm.asked  # type: ignore[attr-defined]
    assert sorted(params.seed for _, params, _ in asked) == [7, 8, 9]


def test_log_probabilities_come_with_their_tokens(engine: LlmApiEngine) -> None:
    params = SamplingParams(temperature=0.0, log_probs=True, top_log_probs=2)
    sink = ask(engine, max_tokens=2, sampling=params).wait()
    assert [output.log_probs for output in sink.outputs] == [(-0.5,), (-0.5,)]
    assert [output.top for output in sink.outputs] == [(((11, -0.5), (12, -1.5)),), (((12, -0.5), (13, -1.5)),)]


def test_a_forbidden_token_is_not_chosen(engine: LlmApiEngine) -> None:
    params = SamplingParams(temperature=0.0, bad_words=((12,),))
    assert ask(engine, sampling=params).wait().tokens() == [11, 13, 14, 15]


def test_a_guide_reaches_the_llm_api_under_its_name(engine: LlmApiEngine) -> None:
    ask(engine, sampling=SamplingParams(temperature=0.0, guide=Guide("regex", "a+"))).wait()
    assert engine._api._llm.asked[0][1].guided_decoding.regex == "a+"  # type: ignore[attr-defined]


def test_a_cancelled_request_ends_at_once_and_the_llm_api_is_told(engine: LlmApiEngine) -> None:
    sink = ask(engine, max_tokens=500)
    sink.wait_for_first()
    assert engine.cancel("r")
    assert sink.wait().last.finish_reason == "cancelled"
    assert engine._api._llm.aborted == 1  # type: ignore[attr-defined]
    assert not engine.cancel("r")


def test_a_request_that_is_cancelled_before_it_begins_ends_too(engine: LlmApiEngine) -> None:
    sink = ask(engine, max_tokens=500)
    engine.cancel("r")
    assert sink.wait().last.finish_reason == "cancelled"


def test_a_deadline_ends_what_is_unfinished(engine: LlmApiEngine) -> None:
    sink = ask(engine, max_tokens=500, deadline=time.monotonic() + 0.1).wait()
    assert sink.last.finish_reason == "deadline"
    assert ask(engine, deadline=time.monotonic() + 60).wait().last.finish_reason == "length"


def test_what_the_llm_api_refuses_is_the_callers_and_what_breaks_is_the_servers(engine: LlmApiEngine) -> None:
    refused = ask(engine, [665]).wait().last
    assert refused.finish_reason == "error" and isinstance(refused.error, RequestError)
    broken = ask(engine, [666]).wait().last
    assert isinstance(broken.error, ServiceError) and "CUDA out of memory" in broken.error.message
    assert ask(engine).wait().tokens() == [11, 12, 13, 14]


def test_requests_are_checked_before_they_are_taken(engine: LlmApiEngine) -> None:
    with pytest.raises(RequestError, match="holds 600 tokens"):
        ask(engine, max_tokens=700)
    with pytest.raises(RequestError, match="vocabulary"):
        ask(engine, [1000])
    with pytest.raises(UnsupportedError, match="seed"):
        ask(engine, sampling=SamplingParams(seed=1))
    assert engine.stats().running == 0


def test_a_full_queue_refuses_more_and_an_id_is_used_once(engine: LlmApiEngine) -> None:
    sinks = [ask(engine, id=f"r{number}", max_tokens=400) for number in range(6)]
    with pytest.raises(OverloadedError):
        ask(engine, id="one more")
    with pytest.raises(RequestError, match="in use"):
        ask(engine, id="r0")
    for number in range(6):
        engine.cancel(f"r{number}")
    assert {sink.wait().last.finish_reason for sink in sinks} == {"cancelled"}


def test_statistics_count_what_was_done(engine: LlmApiEngine) -> None:
    ask(engine).wait()
    deadline = time.monotonic() + 10
    while not engine.stats().kv_blocks_total and time.monotonic() < deadline:
        time.sleep(0.01)
    stats = engine.stats()
    assert (stats.kv_blocks_total, stats.kv_blocks_used, stats.tokens_per_block) == (100, 40, 64)
    assert (stats.generated_tokens_total, stats.prompt_tokens_total, stats.prefix_hit_tokens_total) == (4, 1, 3)
    assert stats.requests_total["length"] == 1


def test_closing_ends_what_runs_and_then_the_llm_api(engine: LlmApiEngine) -> None:
    sink = ask(engine, max_tokens=500)
    sink.wait_for_first()
    engine.close()
    assert sink.last.finish_reason == "cancelled"
    assert not engine.healthy()
    with pytest.raises(UnavailableError):
        ask(engine)


def test_an_llm_that_has_shut_down_is_not_healthy(engine: LlmApiEngine) -> None:
    engine._api.shutdown()
    assert not engine.healthy()
    with pytest.raises(UnavailableError, match="shut down"):
        ask(engine)


def test_an_llm_that_answers_nobody_any_more_is_not_healthy(
    engine: LlmApiEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("conch.backend.llmapi.engine.STUCK_AFTER_S", 0.2)
    time.sleep(0.3)
    assert engine.healthy()  # nobody waits
    sink = ask(engine, [667])
    assert engine.healthy()
    time.sleep(0.3)
    assert not engine.healthy()
    engine.cancel("r")
    assert sink.wait().last.finish_reason == "cancelled"
    assert engine.healthy()


@pytest.fixture
def registry(tmp_path: Path) -> AdapterRegistry:
    adapters = []
    for number, name in enumerate(("two", "three"), 1):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "adapter_model.safetensors").write_bytes(b"")
        adapters.append(RegisteredAdapter(name=name, id=number, path=folder))
    return AdapterRegistry(adapters=tuple(adapters), layers=("layer",), max_rank=8, max_loaded=1)


def test_adapters_are_chosen_by_name_and_reread_under_a_new_number(
    load: Callable[..., LlmApiEngine], registry: AdapterRegistry
) -> None:
    engine = load(registry)
    assert ask(engine, adapter="three").wait().tokens() == [12, 14, 16, 18]
    assert {state.name: state.state for state in engine.adapters()} == {"two": "available", "three": "loaded"}
    engine.load_adapter("three")
    assert ask(engine, adapter="three").wait().tokens() == [13, 16, 19, 22]
    assert engine.stats().adapters.loads == 2


def test_an_adapter_that_is_unloaded_is_unknown_until_it_is_loaded_again(
    load: Callable[..., LlmApiEngine], registry: AdapterRegistry
) -> None:
    engine = load(registry)
    engine.unload_adapter("two")
    with pytest.raises(NotFoundError):
        ask(engine, adapter="two")
    engine.load_adapter("two")
    assert ask(engine, adapter="two").wait().last.finish_reason == "length"
    for order in (engine.load_adapter, engine.unload_adapter):
        with pytest.raises(NotFoundError):
            order("four")


def test_an_adapter_whose_files_are_gone_is_not_loaded(
    load: Callable[..., LlmApiEngine], registry: AdapterRegistry
) -> None:
    engine = load(registry)
    (registry.adapters[0].path / "adapter_model.safetensors").unlink()
    with pytest.raises(RequestError, match="adapter_model"):
        engine.load_adapter("two")


def test_running_answers_of_an_adapter_are_counted(
    load: Callable[..., LlmApiEngine], registry: AdapterRegistry
) -> None:
    engine = load(registry)
    sink = ask(engine, max_tokens=400, adapter="two")
    assert [state.running for state in engine.adapters()] == [1, 0]
    engine.cancel("r")
    sink.wait()
    assert [state.running for state in engine.adapters()] == [0, 0]


@pytest.mark.skipif(find_spec("tensorrt_llm") is not None, reason="this machine has TensorRT-LLM")
def test_a_machine_without_the_package_is_told_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="image"):
        load_engine(write_engine(tmp_path / "engine"))


def test_an_engine_of_another_release_line_is_refused(package: None, tmp_path: Path) -> None:
    folder = write_engine(tmp_path / "engine")
    record = json.loads((folder / "engine.json").read_text(encoding="utf-8"))
    (folder / "engine.json").write_text(json.dumps({**record, "tensorrt_llm": "1.3.0rc21"}), encoding="utf-8")
    with pytest.raises(SetupError, match=r"1\.3\.0rc21"):
        load_engine(folder)


def test_a_bias_is_a_tensor_of_torch(engine: LlmApiEngine) -> None:
    import torch

    bias = np.zeros(1000, np.float32)
    bias[11] = -np.inf
    sink = ask(engine, max_tokens=1, sampling=SamplingParams(temperature=0.0, embedding_bias=bias)).wait()
    assert sink.tokens() == [12]
    given = engine._api._llm.asked[0][1].embedding_bias  # type: ignore[attr-defined]
    assert isinstance(given, torch.Tensor) and given.dtype == torch.float32
