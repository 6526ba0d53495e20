"""LoRA adapters in the engine: loaded when they are needed, held while they are used, gone when they are told to."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from conch.engine import Engine, EngineConfig, Request, SamplingParams
from conch.engine.drafters import NgramDrafter
from conch.engine.speculation import Speculation
from conch_build.errors import NotFoundError, RequestError, UnavailableError
from tests.engine.conftest import Answer, ask
from tests.engine.toy_adapters import MakeToy, Toy
from tests.engine.toy_runner import ToyRunner

PROMPT = [7, 11, 13, 17, 19, 23, 29, 31, 37]  # two full blocks and one token
GREEDY = SamplingParams(temperature=0.0, end_ids=frozenset())
numbers = itertools.count()


def request(adapter: str | None = None, count: int = 6, **more: Any) -> Request:
    return Request(str(next(numbers)), PROMPT, count, GREEDY, adapter=adapter, **more)


def tokens(engine: Engine, adapter: str | None = None, count: int = 6) -> list[int]:
    answer = ask(engine, request(adapter, count)).wait()
    assert answer.reason == "length", answer.error
    return answer.tokens


def eventually(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


@pytest.fixture
def make_toy(tmp_path: Path) -> Iterator[MakeToy]:
    toys: list[Toy] = []

    def make(names: str = "abc", *, slots: int = 2, **config: Any) -> Toy:
        toys.append(Toy(tmp_path, names, slots=slots, **config))
        return toys[-1]

    yield make
    for toy in toys:
        toy.network.gate.set()
        toy.engine.close()


def running(toy: Toy, adapter: str | None, count: int = 400) -> Answer:
    """A request that has started and goes on for a while."""
    answer = ask(toy.engine, request(adapter, count))
    eventually(lambda: bool(answer.outputs))
    return answer


# --- choosing one


def test_requests_with_different_adapters_and_with_none_run_in_the_same_step(make_toy: MakeToy) -> None:
    toy = make_toy(slots=3)
    alone = {name: tokens(toy.engine, name, 60) for name in (None, "a", "b", "c")}
    assert len({tuple(answer) for answer in alone.values()}) == 4
    for _ in range(50):  # on a busy machine one may be over before the next has come
        answers = {name: ask(toy.engine, request(name, 60)) for name in (None, "a", "b", "c")}
        assert {name: answer.wait().tokens for name, answer in answers.items()} == alone
        if {0, 1, 2, 3} in toy.runner.together:
            return
    pytest.fail("the four never ran in one step")


def test_an_unknown_adapter_is_refused_when_the_request_comes(make_toy: MakeToy) -> None:
    with pytest.raises(NotFoundError, match="'z' does not exist") as caught:
        ask(make_toy().engine, request("z"))
    assert (caught.value.param, caught.value.code) == ("model", "model_not_found")


def test_an_engine_without_adapters_knows_none() -> None:
    with Engine(ToyRunner(), EngineConfig()) as engine:
        assert engine.adapters() == []
        for call in (lambda: ask(engine, request("a")), lambda: engine.load_adapter("a")):
            with pytest.raises(NotFoundError):
                call()


def test_all_answers_to_a_request_use_its_adapter_and_hold_it(make_toy: MakeToy) -> None:
    toy = make_toy("ab", slots=1)
    alone = tokens(toy.engine, "a")
    several = ask(toy.engine, request("a", n=3))
    other = ask(toy.engine, request("b"))
    eventually(lambda: any(output.final for output in several.outputs))
    assert [token for output in several.outputs for token in output.tokens if output.index == 2] == alone
    assert other.wait().reason == "length"
    assert toy.engine.stats().adapters.used == 1


def test_guessed_tokens_are_verified_with_the_adapter(make_toy: MakeToy, tmp_path: Path) -> None:
    alone = {name: tokens(make_toy(slots=3).engine, name, 60) for name in (None, "a", "b")}
    toy = make_toy(slots=3, speculation=Speculation(NgramDrafter(1), 4))
    answers = {name: ask(toy.engine, request(name, 60)) for name in alone}
    assert {name: answer.wait().tokens for name, answer in answers.items()} == alone
    assert sum(answer.usage.draft_tokens for answer in answers.values()) > 0


# --- what is loaded


def test_an_adapter_is_read_once_for_the_first_request(make_toy: MakeToy) -> None:
    toy = make_toy()
    assert toy.state("a") == "available"
    assert tokens(toy.engine, "a") == tokens(toy.engine, "a")
    assert toy.network.reads == ["a"]
    assert toy.state("a") == "loaded"


def test_the_one_that_was_not_used_for_longest_makes_room(make_toy: MakeToy) -> None:
    toy = make_toy()
    for name in ("a", "b", "a", "c"):
        tokens(toy.engine, name)
    assert {name: toy.state(name) for name in "abc"} == {"a": "loaded", "b": "available", "c": "loaded"}
    stats = toy.engine.stats().adapters
    assert (stats.slots, stats.used, stats.loads, stats.evictions) == (2, 2, 3, 1)


def test_requests_without_an_adapter_do_not_wait_for_one_to_be_read(make_toy: MakeToy) -> None:
    toy = make_toy()
    toy.network.gate.clear()
    waiting = ask(toy.engine, request("a"))
    tokens(toy.engine)
    assert not waiting.outputs and toy.engine.stats().adapters.waiting == 1
    toy.network.gate.set()
    assert waiting.wait().reason == "length"


def test_those_whose_adapter_is_loaded_pass_one_that_is_being_read(make_toy: MakeToy) -> None:
    toy = make_toy()
    tokens(toy.engine, "a")
    toy.network.gate.clear()
    waiting = ask(toy.engine, request("b"))
    tokens(toy.engine, "a")
    assert not waiting.outputs


def test_when_every_slot_is_held_a_request_waits_and_nobody_passes_it(make_toy: MakeToy) -> None:
    toy = make_toy("abc", slots=2, max_batch_size=8)
    held = [running(toy, "a"), running(toy, "b")]
    waiting = ask(toy.engine, request("c", 40))
    eventually(lambda: "c" in toy.network.reads)
    tokens(toy.engine)
    later = [ask(toy.engine, request("a", 4)) for _ in range(3)]
    tokens(toy.engine)
    assert not waiting.outputs and not any(answer.outputs for answer in later)
    toy.engine.cancel(held[1].outputs[0].request_id)
    waiting.wait()
    assert waiting.reason == "length"
    assert {answer.wait().reason for answer in later} == {"length"}
    toy.engine.cancel(held[0].outputs[0].request_id)


def test_a_stream_of_requests_for_loaded_adapters_starves_nobody(make_toy: MakeToy) -> None:
    toy = make_toy("ab", slots=1)
    answers = [ask(toy.engine, request(name, 12)) for name in "aabaaabbaabab" * 3]
    assert {answer.wait().reason for answer in answers} == {"length"}


def test_who_waits_for_an_adapter_can_leave_or_run_out_of_time(make_toy: MakeToy) -> None:
    toy = make_toy()
    toy.network.gate.clear()
    late = ask(toy.engine, request("a", deadline=time.monotonic() + 0.1))
    gone = ask(toy.engine, request("a", is_cancelled=lambda: True))
    withdrawn = request("b")
    answer = ask(toy.engine, withdrawn)
    assert toy.engine.cancel(withdrawn.id)
    assert (late.wait().reason, gone.wait().reason, answer.wait().reason) == ("deadline", "cancelled", "cancelled")
    toy.network.gate.set()
    tokens(toy.engine, "c")
    assert toy.engine.stats().adapters.used == 1, "what nobody waits for any more takes no slot"


def test_an_adapter_that_cannot_be_read_is_an_error_of_its_requests_alone(make_toy: MakeToy) -> None:
    toy = make_toy()
    toy.write("a", "broken")
    others = [ask(toy.engine, request(name)) for name in (None, "b")]
    failed = ask(toy.engine, request("a")).wait()
    assert failed.reason == "error"
    error = failed.outputs[-1].error
    assert isinstance(error, RequestError) and "'a' cannot be loaded: it is no number" in error.message
    assert str(toy.folder) not in error.message, "where it lies is not for callers"
    assert {answer.wait().reason for answer in others} == {"length"}
    toy.write("a", 1)
    tokens(toy.engine, "a")


def test_closing_ends_those_who_wait(make_toy: MakeToy) -> None:
    toy = make_toy()
    toy.network.gate.clear()
    waiting = ask(toy.engine, request("a"))
    toy.engine.close()
    assert waiting.wait().reason == "cancelled"
    with pytest.raises(UnavailableError):
        toy.engine.load_adapter("a")


# --- orders


def test_an_unloaded_adapter_is_unknown_and_its_slot_is_free(make_toy: MakeToy) -> None:
    toy = make_toy("abc", slots=2)
    for name in "abc":
        toy.engine.load_adapter(name)
    assert [toy.state(name) for name in "abc"] == ["available", "loaded", "loaded"]
    toy.engine.unload_adapter("b")
    assert toy.state("b") == "unloaded" and toy.engine.stats().adapters.used == 1
    with pytest.raises(NotFoundError):
        ask(toy.engine, request("b"))
    with pytest.raises(NotFoundError):
        toy.engine.unload_adapter("b")
    toy.engine.load_adapter("b")
    tokens(toy.engine, "b")


def test_unloading_ends_those_who_wait_for_it_with_the_same_error(make_toy: MakeToy) -> None:
    toy = make_toy("ab", slots=1)
    held = running(toy, "a")
    waiting = ask(toy.engine, request("b"))
    eventually(lambda: toy.engine.stats().adapters.waiting == 1 and "b" in toy.network.reads)
    toy.engine.unload_adapter("b")
    assert isinstance(waiting.wait().outputs[-1].error, NotFoundError)
    assert not held.outputs[-1].finish_reason
    toy.engine.cancel(held.outputs[0].request_id)
    held.wait()


def test_a_running_answer_ends_with_the_weights_that_it_began_with(make_toy: MakeToy) -> None:
    toy = make_toy("ab", slots=1)
    whole = tokens(toy.engine, "a", 400)
    stream = running(toy, "a")
    toy.engine.unload_adapter("a")
    assert toy.engine.stats().adapters.used == 1, "its slot is held until the answer has ended"
    assert stream.wait().tokens == whole
    eventually(lambda: toy.engine.stats().adapters.used == 0)


def test_new_weights_under_an_old_name_give_new_text_and_reuse_no_keys_of_the_old(make_toy: MakeToy) -> None:
    toy = make_toy("ab", slots=2)
    old = tokens(toy.engine, "a", 400)
    stream = running(toy, "a")
    toy.write("a", 9)
    toy.engine.load_adapter("a")
    fresh = ask(toy.engine, request("a", 400)).wait()
    assert fresh.tokens != old and fresh.usage.cached_tokens == 0
    assert stream.wait().tokens == old, "old and new ran in the same steps"
    assert ask(toy.engine, request("a")).wait().usage.cached_tokens > 0


def test_the_same_weights_loaded_again_keep_their_slot_and_their_keys(make_toy: MakeToy) -> None:
    toy = make_toy()
    tokens(toy.engine, "a")
    toy.engine.load_adapter("a")
    assert toy.engine.stats().adapters.loads == 1
    assert ask(toy.engine, request("a")).wait().usage.cached_tokens > 0


def test_no_keys_are_shared_between_adapters_or_with_the_model_itself(make_toy: MakeToy) -> None:
    toy = make_toy(slots=3)
    for name in (None, "a", "b", "c"):
        assert ask(toy.engine, request(name)).wait().usage.cached_tokens == 0
    for name in (None, "a", "b", "c"):
        assert ask(toy.engine, request(name)).wait().usage.cached_tokens > 0


def test_weights_that_do_not_fit_leave_what_was_loaded(make_toy: MakeToy) -> None:
    toy = make_toy()
    good = tokens(toy.engine, "a")
    toy.write("a", "broken")
    with pytest.raises(RequestError, match="cannot be loaded"):
        toy.engine.load_adapter("a")
    assert tokens(toy.engine, "a") == good


def test_loading_while_every_slot_is_held_makes_the_adapter_known_and_takes_no_slot(make_toy: MakeToy) -> None:
    toy = make_toy("ab", slots=1)
    held = running(toy, "a")
    toy.engine.load_adapter("b")
    assert toy.state("b") == "available"
    waiting = ask(toy.engine, request("b"))
    held.wait()
    assert waiting.wait().reason == "length"
