"""The whole engine over the toy model: every request ends rightly, whatever else is going on."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import numpy as np
import pytest

from conch.engine import Engine, EngineConfig, Output, Request, SamplingParams
from conch_build.errors import OverloadedError, RequestError, UnavailableError
from tests.engine.conftest import Answer, MakeEngine, ask
from tests.engine.toy_runner import ToyRunner

GREEDY = SamplingParams(temperature=0.0)


def request(name: str, prompt: list[int], max_tokens: int = 10, **changes: Any) -> Request:
    sampling = changes.pop("sampling", GREEDY)
    return Request(name, prompt, max_tokens, sampling, **changes)


def alone(prompt: list[int], max_tokens: int, sampling: SamplingParams = GREEDY, **config: Any) -> list[int]:
    """The answer with the engine to itself, in one block table, the prompt in one step."""
    runner = ToyRunner(num_blocks=64)
    with Engine(runner, EngineConfig(max_seq_len=256, reuse=False, **config)) as engine:
        return ask(engine, Request("alone", prompt, max_tokens, sampling)).wait().tokens


def settled(engine: Engine) -> bool:
    stats = engine.stats()
    return stats.kv_blocks_used == stats.running == stats.waiting == 0


def random_requests(count: int, seed: int, longest: int = 60) -> list[Request]:
    """Many shapes: shared prefixes, one-token prompts, greedy and sampled, penalties, stop words."""
    rng = random.Random(seed)
    prefix = [rng.randrange(61) for _ in range(40)]
    made = []
    for number in range(count):
        start = prefix[: rng.choice([0, 0, 8, 21, 40])]
        prompt = start + [rng.randrange(61) for _ in range(rng.randint(1, longest - len(start)))]
        sampling = rng.choice(
            [
                GREEDY,
                SamplingParams(temperature=0.0, end_ids=frozenset({3, 4})),
                SamplingParams(seed=number, top_p=0.9),
                SamplingParams(temperature=0.8, seed=number, top_k=20, repetition_penalty=1.2),
                SamplingParams(temperature=0.0, frequency_penalty=0.5, stop_words=((7,), (8, 9))),
            ]
        )
        made.append(Request(f"request-{number}", prompt, rng.randint(1, 40), sampling))
    return made


# --- answers do not depend on company


@pytest.mark.parametrize(
    ("config", "blocks", "preempts"),
    [
        ({}, 400, False),
        ({"max_num_tokens": 7}, 400, False),
        ({"chunked_prefill": False, "max_num_tokens": 80}, 400, False),
        ({"reuse": False}, 60, True),
        ({}, 60, True),
        ({"max_batch_size": 1}, 40, False),
        ({"max_batch_size": 16}, 30, True),
    ],
    ids=str,
)
def test_answers_are_the_same_alone_and_in_any_mix(
    make_engine: MakeEngine, config: dict[str, Any], blocks: int, preempts: bool
) -> None:
    tokens = config.get("max_num_tokens", 32)
    engine = make_engine(ToyRunner(num_blocks=blocks, max_num_tokens=tokens), **config)
    requests = random_requests(40, seed=blocks)
    answers = [ask(engine, each) for each in requests]
    for each, answer in zip(requests, answers, strict=True):
        assert answer.wait().tokens == alone(list(each.prompt), each.max_tokens, each.sampling)
        assert answer.reason in ("stop", "length")
    stats = engine.stats()
    assert settled(engine)
    assert (stats.preemptions_total > 0) == preempts
    assert (stats.prefix_hit_tokens_total > 0) == config.get("reuse", True)


def test_a_repeated_prompt_reuses_its_blocks_and_gives_the_same_answer(make_engine: MakeEngine) -> None:
    engine = make_engine()
    prompt = list(range(30))
    first, second = (ask(engine, request(name, prompt)).wait() for name in "ab")
    assert first.tokens == second.tokens == alone(prompt, 10)
    assert (first.usage.cached_tokens, second.usage.cached_tokens) == (0, 28)
    assert (second.usage.reused_blocks, second.usage.new_blocks) == (7, 3)
    follow_up = ask(engine, request("c", prompt + first.tokens + [1])).wait()
    assert follow_up.usage.cached_tokens == 36, "the answer's own blocks are reused as well"
    assert follow_up.tokens == alone(prompt + first.tokens + [1], 10)


def test_a_prompt_still_being_computed_shares_only_what_is_there(make_engine: MakeEngine) -> None:
    gate = Gate()
    engine = make_engine(gate, max_num_tokens=80, max_seq_len=200)
    prompt = [token % 61 for token in range(100)]
    first, second = ask(engine, request("a", prompt)), ask(engine, request("b", prompt))
    gate.open()
    assert first.wait().tokens == second.wait().tokens == alone(prompt, 10)
    assert second.usage.cached_tokens == 80  # the first chunk's whole blocks


# --- how an answer ends


def test_an_end_id_stops_the_answer_and_is_not_sent(make_engine: MakeEngine) -> None:
    full = alone([5, 6], 20)
    end = full[7]
    length = full.index(end)
    for own, config in ((None, {"end_ids": frozenset({60, end})}), (frozenset({end}), {})):
        answer = ask(
            make_engine(**config),
            request("a", [5, 6], 20, sampling=SamplingParams(temperature=0.0, end_ids=own)),
        ).wait()
        assert (answer.tokens, answer.reason) == (full[:length], "stop")
        assert answer.usage.completion_tokens == length
    ignoring = SamplingParams(temperature=0.0, end_ids=frozenset())
    engine = make_engine(end_ids=frozenset({end}))
    assert ask(engine, request("a", [5, 6], 20, sampling=ignoring)).wait().tokens == full


def test_a_stop_word_spanning_tokens_ends_the_answer_and_is_sent(make_engine: MakeEngine) -> None:
    full = alone([5, 6], 20)
    word = tuple(full[4:7])
    sampling = SamplingParams(temperature=0.0, stop_words=((60, 60), word))
    answer = ask(make_engine(), request("a", [5, 6], 20, sampling=sampling)).wait()
    assert (answer.tokens, answer.reason) == (full[:7], "stop")


def test_a_stop_word_does_not_reach_into_the_prompt(make_engine: MakeEngine) -> None:
    full = alone([5, 6], 5)
    sampling = SamplingParams(temperature=0.0, stop_words=((6, full[0]),))
    assert ask(make_engine(), request("a", [5, 6], 5, sampling=sampling)).wait().reason == "length"


def test_max_tokens_ends_with_length_and_one_token_an_output(make_engine: MakeEngine) -> None:
    answer = ask(make_engine(), request("a", [1], 5)).wait()
    assert [len(output.tokens) for output in answer.outputs] == [1] * 5
    assert [output.finish_reason for output in answer.outputs] == [None] * 4 + ["length"]
    usage = answer.usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (1, 5)
    times = (usage.arrival_ns, usage.first_scheduled_ns, usage.first_token_ns, usage.last_token_ns)
    assert times[0] > 0 and list(times) == sorted(times)


def test_log_probs_come_with_every_token(make_engine: MakeEngine) -> None:
    sampling = SamplingParams(temperature=0.0, log_probs=True, top_log_probs=3)
    for output in ask(make_engine(), request("a", [1], 4, sampling=sampling)).wait().outputs:
        assert output.log_probs is not None and output.top is not None
        [best], [chosen] = output.top, output.log_probs
        assert best[0] == (output.tokens[0], pytest.approx(chosen)) and len(best) == 3


# --- how an answer is cut short


def test_a_cancelled_request_ends_at_once_and_its_blocks_come_back(make_engine: MakeEngine) -> None:
    gate = Gate()
    engine = make_engine(gate)
    running, waiting = ask(engine, request("a", [1], 100)), ask(engine, request("b", [2], 100))
    gate.open(steps=3)
    assert engine.cancel("a") and engine.cancel("b")
    gate.open()
    assert running.wait().reason == waiting.wait().reason == "cancelled"
    assert running.usage.completion_tokens == len(running.tokens) <= 4
    assert settled(engine) and not engine.cancel("a") and not engine.cancel("never there")
    assert engine.stats().requests_total["cancelled"] == 2


def test_a_caller_who_has_left_is_noticed(make_engine: MakeEngine) -> None:
    left = threading.Event()
    engine = make_engine(Gate(steps=1 << 30, seconds=0.002), max_seq_len=256)
    answers = [ask(engine, request(str(n), [n], 200, is_cancelled=left.is_set if n % 2 else None)) for n in range(6)]
    left.set()
    reasons = [answer.wait().reason for answer in answers]
    assert reasons == ["length", "cancelled"] * 3


def test_slow_questions_to_callers_do_not_slow_the_steps(make_engine: MakeEngine) -> None:
    asked = []

    def slow() -> bool:
        asked.append(time.sleep(0.001))
        return False

    engine = make_engine(Gate(steps=1 << 30, seconds=0.001))
    answers = [ask(engine, request(str(n), [n], 100, is_cancelled=slow)) for n in range(8)]
    for answer in answers:
        answer.wait()
    assert 0 < len(asked) < 100, "800 tokens, far fewer questions"


def test_a_deadline_ends_a_request_that_runs_or_waits(make_engine: MakeEngine) -> None:
    engine = make_engine(Gate(steps=1 << 30, seconds=0.005), max_batch_size=1)
    soon = time.monotonic() + 0.1
    running, waiting = (ask(engine, request(name, [1], 100, deadline=soon)) for name in "ab")
    assert running.wait().reason == waiting.wait().reason == "deadline"
    assert running.tokens and not waiting.tokens and settled(engine)
    late = ask(engine, request("c", [1], deadline=time.monotonic() - 1)).wait()
    assert (late.reason, late.tokens) == ("deadline", [])


def test_a_failing_sink_cancels_its_own_request_only(make_engine: MakeEngine) -> None:
    engine = make_engine()

    def broken(output: Output) -> None:
        raise OSError("the reader is gone")

    engine.submit(request("bad", [1], 50), broken)
    assert ask(engine, request("good", [2], 50)).wait().tokens == alone([2], 50)
    assert engine.stats().requests_total["cancelled"] == 1 and settled(engine)


@pytest.mark.parametrize("heard", range(1, 30, 4))
def test_a_sink_that_fails_between_several_answers_ends_them_and_nothing_else(
    make_engine: MakeEngine, heard: int
) -> None:
    engine, outputs = make_engine(), list[Output]()

    def broken(output: Output) -> None:
        outputs.append(output)
        if len(outputs) >= heard:
            raise OSError("the reader is gone")

    sampling = SamplingParams(seed=1, end_ids=frozenset())
    engine.submit(Request("bad", [1, 2, 3], 40, sampling, n=3), broken)
    good = ask(engine, request("good", [2], 50)).wait()
    assert good.tokens == alone([2], 50) and len(outputs) == heard
    assert engine.healthy() and engine.stats().requests_total["cancelled"] == 1 and settled(engine)


def test_closing_ends_everything_and_takes_nothing_more(make_engine: MakeEngine) -> None:
    engine = make_engine(Gate(steps=1 << 30, seconds=0.005), max_batch_size=2)
    answers = [ask(engine, request(str(n), [n], 100)) for n in range(5)]
    engine.close()
    engine.close()
    assert {answer.wait().reason for answer in answers} == {"cancelled"}
    assert settled(engine) and not engine.healthy()
    with pytest.raises(UnavailableError):
        ask(engine, request("late", [1]))


def test_a_sink_may_submit_cancel_and_close(make_engine: MakeEngine) -> None:
    engine, second = make_engine(), Answer()

    def first(output: Output) -> None:
        if output.finish_reason == "length":
            engine.submit(request("a", [2], 5), second)  # the id is free again
        elif output.finish_reason is None:
            assert engine.cancel("not there") is False

    engine.submit(request("a", [1], 5), first)
    assert second.wait().tokens == alone([2], 5)
    third = Answer()
    engine.submit(request("b", [1], 50), lambda output: (third(output), engine.close()))  # type: ignore[arg-type]
    assert third.wait().reason == "cancelled"


# --- what goes wrong in a step


class Gate(ToyRunner):
    """Steps only when allowed, and takes its time."""

    def __init__(self, steps: int = 0, seconds: float = 0.0, **changes: Any) -> None:
        super().__init__(**changes)
        self._allowed = threading.Semaphore(min(steps, 1 << 20))
        self._seconds = seconds

    def open(self, steps: int = 1000) -> None:
        self._allowed.release(steps)

    def step(self, slots: Any) -> Any:
        self._allowed.acquire()
        time.sleep(self._seconds)
        return super().step(slots)


class Faulty(Gate):
    """Fails at the steps named."""

    def __init__(self, failing: Any) -> None:
        super().__init__()
        self._failing = failing
        self._count = 0

    def step(self, slots: Any) -> Any:
        rows = super().step(slots)
        self._count += 1
        if self._count in self._failing:
            raise RuntimeError("out of memory")
        return rows


def test_a_failed_step_ends_what_ran_and_spares_what_waited(make_engine: MakeEngine) -> None:
    runner = Faulty({3})
    engine = make_engine(runner, max_batch_size=1)
    first, second = ask(engine, request("a", [1], 50)), ask(engine, request("b", [2], 50))
    runner.open()
    assert first.wait().reason == "error" and "out of memory" in str(first.error)
    assert second.wait().tokens == alone([2], 50)
    assert engine.healthy() and settled(engine)
    assert engine.stats().requests_total["error"] == 1


def test_a_runner_that_keeps_failing_ends_the_engine(make_engine: MakeEngine) -> None:
    runner = Faulty(range(2, 1000))
    engine = make_engine(runner, max_batch_size=1)
    answers = [ask(engine, request(str(n), [n], 50)) for n in range(6)]
    runner.open()
    assert {answer.wait().reason for answer in answers} == {"error"}
    assert not engine.healthy()
    with pytest.raises(UnavailableError, match="out of memory"):
        ask(engine, request("late", [1]))


# --- what is refused


@pytest.mark.parametrize(
    ("changes", "param", "says"),
    [
        ({"temperature": -1.0}, "temperature", "0 or more"),
        ({"temperature": float("nan")}, "temperature", "0 or more"),
        ({"temperature": float("inf")}, "temperature", "0 or more"),
        ({"temperature": "hot"}, "temperature", "0 or more"),
        ({"top_p": 0.0}, "top_p", "above 0 and at most 1"),
        ({"top_p": 1.5}, "top_p", "above 0 and at most 1"),
        ({"min_p": -0.1}, "min_p", "from 0 to 1"),
        ({"top_k": -5}, "top_k", "0 or more"),
        ({"repetition_penalty": 0.0}, "repetition_penalty", "above 0"),
        ({"presence_penalty": float("inf")}, "presence_penalty", "finite"),
        ({"seed": 1 << 64}, "seed", "64 bits"),
        ({"seed": 1.5}, "seed", "64 bits"),
        ({"min_tokens": -1}, "min_tokens", "0 or more"),
        ({"top_log_probs": 21}, "top_log_probs", "from 0 to 20"),
        (
            {"logit_bias": {61: 5.0}},
            "logit_bias",
            "token id 61 is not in the vocabulary, which runs from 0 to 60",
        ),
        ({"logit_bias": {-1: 5.0}}, "logit_bias", "token id -1"),
        ({"logit_bias": {17: float("nan")}}, "logit_bias", "bias of token 17"),
        ({"stop_words": ((),)}, "stop_words", "empty"),
        ({"bad_words": ((99,),)}, "bad_words", "token id 99"),
        ({"end_ids": frozenset({61})}, "end_ids", "token id 61"),
        ({"embedding_bias": np.zeros(7)}, "embedding_bias", r"\[61\]"),
        ({"embedding_bias": np.full(61, np.nan)}, "embedding_bias", "finite"),
        ({"embedding_bias": np.full(61, -np.inf)}, "embedding_bias", "forbids every token"),
    ],
    ids=str,
)
def test_bad_sampling_is_refused_by_name(
    make_engine: MakeEngine, changes: dict[str, Any], param: str, says: str
) -> None:
    engine = make_engine()
    with pytest.raises(RequestError, match=says) as refused:
        ask(engine, request("a", [1], sampling=SamplingParams(**changes)))
    assert refused.value.param == param
    assert ask(engine, request("a", [1])).wait().reason == "length", "the next request answers"


@pytest.mark.parametrize(
    "changes",
    [
        {"temperature": 0},
        {"temperature": 999_999.0},
        {"temperature": 1e-9},
        {"top_k": 10**9},
        {"seed": -1},
        {"seed": (1 << 64) - 1},
        {"top_p": np.float32(0.5), "seed": np.int64(3)},
        {"logit_bias": {3: 100.0, 4: -100.0}},
    ],
    ids=str,
)
def test_extreme_sampling_within_its_range_is_answered(make_engine: MakeEngine, changes: dict[str, Any]) -> None:
    assert ask(make_engine(), request("a", [1], sampling=SamplingParams(**changes))).wait().reason == "length"


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "param"),
    [
        ([], 5, "prompt"),
        ([1, 61], 5, "prompt"),
        ([-1], 5, "prompt"),
        ([1.5], 5, "prompt"),
        ([1], 0, "max_tokens"),
    ],
    ids=str,
)
def test_a_bad_prompt_or_length_is_refused(make_engine: MakeEngine, prompt: Any, max_tokens: int, param: str) -> None:
    with pytest.raises(RequestError) as refused:
        ask(make_engine(), request("a", prompt, max_tokens))
    assert refused.value.param == param


def test_the_context_is_filled_exactly_and_not_by_one_more(make_engine: MakeEngine) -> None:
    engine = make_engine(max_seq_len=64)
    assert len(ask(engine, request("a", [1] * 50, 14)).wait().tokens) == 14
    with pytest.raises(RequestError, match="holds 64 tokens: the prompt has 50 and max_tokens asks for 15") as refused:
        ask(engine, request("a", [1] * 50, 15))
    assert refused.value.code == "context_length_exceeded"


def test_a_prompt_too_long_for_one_step_is_refused_without_chunks(make_engine: MakeEngine) -> None:
    engine = make_engine(chunked_prefill=False, max_num_tokens=32, max_batch_size=8)
    assert ask(engine, request("a", [1] * 25)).wait().reason == "length"
    with pytest.raises(RequestError, match="at most 25 tokens"):
        ask(engine, request("a", [1] * 26))


def test_a_full_queue_and_a_used_id_are_refused(make_engine: MakeEngine) -> None:
    gate = Gate()
    engine = make_engine(gate, max_batch_size=2, max_queue_size=3)
    answers = [ask(engine, request(str(n), [n])) for n in range(5)]
    with pytest.raises(OverloadedError):
        ask(engine, request("5", [1]))
    assert engine.cancel("4")
    gate.open()
    assert answers[4].wait().reason == "cancelled"
    with pytest.raises(RequestError, match="in use"):
        gate_held = make_engine(Gate())
        for _ in range(2):
            ask(gate_held, request("same", [1]))
    gate_held._runner.open()  # type: ignore[attr-defined]
    assert {answer.wait().reason for answer in answers[:4]} == {"length"}


# --- under load


def test_every_request_ends_rightly_under_overload_cancels_and_many_threads(make_engine: MakeEngine) -> None:
    threads_before = threading.active_count()
    engine = make_engine(ToyRunner(num_blocks=40, max_num_tokens=32), max_batch_size=16)
    requests = random_requests(300, seed=1)
    answers = {each.id: Answer() for each in requests}
    cancelled = {each.id for each in requests[::3]}

    def client(share: list[Request], seed: int) -> None:
        rng = random.Random(seed)
        for each in share:
            engine.submit(each, answers[each.id])
            time.sleep(rng.random() * 0.002)
            if each.id in cancelled:
                threading.Timer(rng.random() * 0.3, engine.cancel, [each.id]).start()

    clients = [threading.Thread(target=client, args=(requests[n::4], n)) for n in range(4)]
    for thread in clients:
        thread.start()
    for thread in clients:
        thread.join()
    ended = {name: answer.wait() for name, answer in answers.items()}
    for each in requests[::7]:
        full = alone(list(each.prompt), each.max_tokens, each.sampling)
        got = ended[each.id]
        assert got.tokens == full[: len(got.tokens)]
        assert got.reason == "cancelled" or len(got.tokens) == len(full)
    assert all(answer.reason != "cancelled" for name, answer in ended.items() if name not in cancelled)

    stats = engine.stats()
    assert settled(engine) and stats.preemptions_total > 0
    assert sum(stats.requests_total.values()) == 300
    assert stats.generated_tokens_total == sum(answer.usage.completion_tokens for answer in ended.values())
    assert stats.generated_tokens_total == sum(len(answer.tokens) for answer in ended.values())
    assert stats.prompt_tokens_total == sum(len(each.prompt) for each in requests)
    engine.close()
    while threading.active_count() > threads_before:  # timers of requests that ended first
        time.sleep(0.01)


def test_an_idle_engine_does_nothing(make_engine: MakeEngine) -> None:
    engine = make_engine()
    ask(engine, request("a", [1])).wait()
    time.sleep(0.05)
    steps, spent = engine.stats().steps_total, time.process_time()
    time.sleep(0.3)
    assert engine.stats().steps_total == steps
    assert time.process_time() - spent < 0.1
    assert engine.healthy()
