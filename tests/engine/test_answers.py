"""Several answers to one prompt, and the log probabilities of the prompt itself."""

from __future__ import annotations

import math

import numpy as np
import pytest

from conch.engine import Request, SamplingParams
from conch_build.errors import RequestError
from tests.engine.conftest import MakeEngine, ask
from tests.engine.test_engine import Gate, alone, settled
from tests.engine.toy_runner import ToyRunner

SAMPLED = SamplingParams(seed=11, end_ids=frozenset())


@pytest.mark.parametrize("length", [1, 3, 8, 30])
def test_several_answers_share_the_blocks_of_the_prompt(make_engine: MakeEngine, length: int) -> None:
    engine = make_engine()
    prompt = [token % 61 for token in range(length)]
    answer = ask(engine, Request("a", prompt, 10, SAMPLED, n=4)).wait()
    answers = [answer.of(index) for index in range(4)]
    assert answers[0] == alone(prompt, 10, SAMPLED), "the first is what a single one would be"
    assert len({tuple(each) for each in answers}) == 4, "each draws with noise of its own"
    usages = [output.usage for output in answer.outputs if output.usage]
    assert sorted(usage.reused_blocks for usage in usages) == [0, *[length // 4] * 3]
    assert settled(engine)
    assert engine.stats().requests_total["length"] == 1
    assert engine.stats().prompt_tokens_total == length


def test_each_answer_writes_into_blocks_of_its_own(make_engine: MakeEngine) -> None:
    """The last block of a prompt is part full: were it shared, the answers would overwrite each other."""
    engine = make_engine()
    prompt = [1, 2, 3, 4, 5, 6]
    several = ask(engine, Request("a", prompt, 30, SAMPLED, n=3)).wait()
    for index in (1, 2):
        follow = several.of(index)
        continued = alone([*prompt, *follow[:29]], 1, SamplingParams(temperature=0.0, end_ids=frozenset()))
        greedy = ask(engine, Request(f"b{index}", [*prompt, *follow[:29]], 1, SamplingParams(temperature=0.0))).wait()
        assert greedy.tokens == continued


@pytest.mark.parametrize(("blocks", "batch"), [(400, 2), (24, 8), (24, 2)])
def test_answers_without_room_wait_and_are_the_same(make_engine: MakeEngine, blocks: int, batch: int) -> None:
    prompt = [token % 61 for token in range(18)]
    roomy = ask(make_engine(), Request("a", prompt, 30, SAMPLED, n=4)).wait()
    engine = make_engine(ToyRunner(num_blocks=blocks), max_batch_size=max(batch, 4))
    company = [ask(engine, Request(f"b{n}", [n], 30, SAMPLED)) for n in range(batch)]
    cramped = ask(engine, Request("a", prompt, 30, SAMPLED, n=4)).wait()
    assert [cramped.of(index) for index in range(4)] == [roomy.of(index) for index in range(4)]
    for answer in company:
        answer.wait()
    assert settled(engine)


def test_cancelling_a_request_ends_all_its_answers_whenever_it_comes(make_engine: MakeEngine) -> None:
    for steps in range(6):
        runner = Gate(steps=steps)
        engine = make_engine(runner, max_num_tokens=12)
        answer = ask(engine, Request("a", list(range(30)), 50, SAMPLED, n=3))
        assert engine.cancel("a")
        runner.open()
        answer.wait()
        ends = [(output.index, output.finish_reason) for output in answer.outputs if output.finish_reason]
        assert sorted(ends) == [(index, "cancelled") for index in range(3)]
        assert settled(engine) and not engine.cancel("a")
        assert engine.stats().requests_total["cancelled"] == 1


def test_more_answers_than_run_at_once_are_refused(make_engine: MakeEngine) -> None:
    with pytest.raises(RequestError, match="from 1 to 8") as refused:
        make_engine().submit(Request("a", [1], 1, n=9), print)
    assert refused.value.param == "n"


@pytest.mark.parametrize("count", [0, 3])
@pytest.mark.parametrize("length", [1, 2, 33, 80])
def test_prompt_log_probs_are_those_of_the_models_own_rows(make_engine: MakeEngine, length: int, count: int) -> None:
    prompt = [(7 * token) % 61 for token in range(length)]
    engine = make_engine(max_num_tokens=40)
    ask(engine, Request("warm", prompt, 1, SAMPLED)).wait()
    sampling = SamplingParams(temperature=0.0, prompt_log_probs=True, top_log_probs=count, end_ids=frozenset())
    answer = ask(engine, Request("a", prompt, 3, sampling)).wait()
    assert answer.tokens == alone(prompt, 3, SamplingParams(temperature=0.0, end_ids=frozenset()))
    assert answer.usage.cached_tokens == 0, "a reused block has no rows"
    given = [output.prompt_log_probs for output in answer.outputs if output.prompt_log_probs]
    assert len(given) == 1 and answer.outputs[0].prompt_log_probs is given[0]
    expected = [log_probs_after(prompt[:at]) for at in range(1, length)]
    assert given[0].log_probs == pytest.approx([row[token] for row, token in zip(expected, prompt[1:], strict=True)])
    for top, row in zip(given[0].top, expected, strict=True):
        best = np.argsort(-row, kind="stable")[:count]
        assert [token for token, _ in top] == best.tolist()
        assert [value for _, value in top] == pytest.approx(row[best].tolist())


def log_probs_after(prompt: list[int]) -> np.ndarray:
    from conch.engine import Slot

    rows = ToyRunner().step([Slot(prompt, 0, list(range(20)), 1)])
    assert rows is not None
    logits = rows.logits[0].astype(np.float64)
    result: np.ndarray = logits - math.log(np.exp(logits).sum())
    return result
