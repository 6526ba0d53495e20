"""The engine over the real LLM API on a real GPU: what its stand-in can only claim."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from conch.engine.guide import Guide
from conch.engine.request import SamplingParams
from tests.serving.test_llmapi_engine import GREEDY, ask

if TYPE_CHECKING:
    from conch.backend.llmapi.engine import LlmApiEngine

pytestmark = pytest.mark.gpu

PROMPT = "1, 2, 3, 4, 5,"
_PLAN = """
name: smollm2
model: {checkpoint: sample}
target: {gpu: %s}
engine: {backend: pytorch, max_seq_len: 1024, max_batch_size: 8, kv_cache: {free_memory_fraction: 0.3}}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample model as the plan builds it for the GPU of this machine."""
    from conch_build.gpu.cards import GPUS
    from conch_build.gpu.installed import installed_gpus
    from conch_build.pipeline import build
    from conch_build.plan import parse_plan
    from conch_build.store import Store

    sm = installed_gpus()[0].sm
    name = next(name for name, gpu in GPUS.items() if gpu.sm == sm)
    return build(parse_plan(_PLAN % name), Store(), say=lambda text: print(text, file=sys.stderr)).engine.path


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[LlmApiEngine]:
    from conch.backend.llmapi.loading import load_engine

    engine = load_engine(folder)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def prompt(folder: Path) -> list[int]:
    from tokenizers import Tokenizer

    ids: list[int] = Tokenizer.from_file(str(folder / "tokenizer" / "tokenizer.json")).encode(PROMPT).ids
    return ids


def text_of(folder: Path, ids: list[int]) -> str:
    from tokenizers import Tokenizer

    text: str = Tokenizer.from_file(str(folder / "tokenizer" / "tokenizer.json")).decode(ids)
    return text


def test_it_goes_on_counting(engine: LlmApiEngine, folder: Path, prompt: list[int]) -> None:
    sink = ask(engine, prompt, 12).wait()
    assert text_of(folder, sink.tokens()).replace(" ", "").startswith("6,7,8")
    assert sink.last.finish_reason == "length" and len(sink.tokens()) == 12
    assert len(sink.outputs) == 12


def test_a_stop_word_in_the_middle_ends_the_answer(engine: LlmApiEngine, prompt: list[int]) -> None:
    whole = ask(engine, prompt, 12).wait().tokens()
    sink = ask(engine, prompt, 12, sampling=SamplingParams(temperature=0.0, stop_words=(tuple(whole[3:5]),))).wait()
    assert (sink.tokens(), sink.last.finish_reason) == (whole[:5], "stop")


def test_an_end_id_of_the_request_ends_it_and_is_left_out(engine: LlmApiEngine, prompt: list[int]) -> None:
    whole = ask(engine, prompt, 12).wait().tokens()
    at = whole.index(whole[4])
    sink = ask(engine, prompt, 12, sampling=SamplingParams(temperature=0.0, end_ids=frozenset({whole[4]}))).wait()
    assert (sink.tokens(), sink.last.finish_reason) == (whole[:at], "stop")


def test_log_probabilities_are_of_the_chosen_tokens(engine: LlmApiEngine, prompt: list[int]) -> None:
    sink = ask(engine, prompt, 4, sampling=SamplingParams(temperature=0.0, log_probs=True, top_log_probs=3)).wait()
    for output in sink.outputs:
        for token, score, top in zip(output.tokens, output.log_probs or (), output.top or (), strict=True):
            assert top[0] == (token, pytest.approx(score)) and score <= 0 and len(top) == 3


def test_a_forbidden_token_is_not_chosen(engine: LlmApiEngine, prompt: list[int]) -> None:
    first = ask(engine, prompt, 1).wait().tokens()[0]
    sink = ask(engine, prompt, 4, sampling=SamplingParams(temperature=0.0, bad_words=((first,),))).wait()
    assert first not in sink.tokens()


@pytest.mark.parametrize(
    ("guide", "allowed"),
    [(Guide("regex", "[a-c]{3}"), "abc"), (Guide("choice", '["yes", "no"]'), "yesno"), (Guide("json"), None)],
)
def test_a_guide_binds(
    engine: LlmApiEngine, folder: Path, prompt: list[int], guide: Guide, allowed: str | None
) -> None:
    sink = ask(engine, prompt, 200, sampling=SamplingParams(temperature=0.0, guide=guide)).wait()
    text = text_of(folder, sink.tokens())
    if allowed is not None:
        assert text and set(text) <= set(allowed)
    elif sink.last.finish_reason == "stop":
        json.loads(text)


def test_draws_differ_and_several_answers_come_at_once(engine: LlmApiEngine, prompt: list[int]) -> None:
    sink = ask(engine, prompt, 24, n=3, sampling=SamplingParams(temperature=1.5)).wait()
    assert len({tuple(sink.tokens(index)) for index in range(3)}) > 1


def test_a_cancelled_request_frees_its_place(engine: LlmApiEngine, prompt: list[int]) -> None:
    params = SamplingParams(temperature=0.0, end_ids=frozenset())
    sink = ask(engine, prompt, 900, sampling=params)
    sink.wait_for_first()
    engine.cancel("r")
    assert sink.wait().last.finish_reason == "cancelled"
    assert ask(engine, prompt, 4, sampling=GREEDY).wait().last.finish_reason == "length"


def test_a_prompt_that_comes_again_is_found_in_the_cache(engine: LlmApiEngine, prompt: list[int]) -> None:
    long = prompt * 20
    ask(engine, long, 2).wait()
    usage = ask(engine, long, 2).wait().last.usage
    assert usage and (usage.cached_tokens > 0 or usage.reused_blocks > 0)
    assert engine.stats().kv_blocks_total > 0
