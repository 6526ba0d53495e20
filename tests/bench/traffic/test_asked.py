"""What is asked: lengths, prompts, mixes and traces."""

from __future__ import annotations

import json
import math
import random
import statistics
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conch.bench.traffic.lengths import Lengths, parse_lengths
from conch.bench.traffic.prompts import Ids, Mix, Words
from conch.bench.traffic.trace import load_trace
from conch_build.errors import InputError

WORDS = Words(["one two three four five six seven"], tokens_per_word=2.0, overhead=10.0)
IDS = Ids(["one two three", "four five"] * 4, lambda text: [hash(word) % 1000 for word in text.split()])
FIXED = Lengths("fixed", 40)


def drawn(spec: str, count: int = 4000) -> list[int]:
    chance = random.Random(0)
    lengths = parse_lengths(spec, "--input-tokens")
    return [lengths.draw(chance) for _ in range(count)]


def test_lengths_follow_their_distribution() -> None:
    assert set(drawn("128")) == {128}
    uniform = drawn("uniform:64-256")
    assert (min(uniform), max(uniform)) == (64, 256) and statistics.fmean(uniform) == pytest.approx(160, rel=0.03)
    normal = drawn("normal:128,32")
    assert statistics.fmean(normal) == pytest.approx(128, rel=0.03)
    assert statistics.stdev(normal) == pytest.approx(32, rel=0.05)
    logarithms = [math.log(length) for length in drawn("lognormal:128,0.5")]
    assert statistics.fmean(logarithms) == pytest.approx(math.log(128), abs=0.03)
    assert statistics.stdev(logarithms) == pytest.approx(0.5, rel=0.05)


@given(st.integers(1, 50), st.floats(0, 500), st.integers(0, 99))
def test_no_length_is_below_the_least(mean: int, deviation: float, seed: int) -> None:
    assert Lengths("normal", mean, deviation, least=2).draw(random.Random(seed)) >= 2


@pytest.mark.parametrize("text", ["", "0", "many", "uniform:9-3", "uniform:3,9", "normal:5", "normal:5-2", "fixed:5,1"])
def test_other_lengths_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="--input-tokens"):
        parse_lengths(text, "--input-tokens")


@pytest.mark.parametrize("writer", [WORDS, IDS], ids=["words", "ids"])
def test_a_shared_prefix_begins_every_prompt_and_the_rest_differs(writer: Words | Ids) -> None:
    mix = Mix({"m": 1}, FIXED, FIXED, shared_prefix=60)
    prompts = [mix.session(n, writer).turns[0].content for n in range(5)]
    shared = writer.write("shared-0", 60)
    assert all(prompt[: len(shared)] == shared for prompt in prompts)
    assert len(set(prompts)) == 5


def test_ids_have_exactly_their_length_and_words_about_it() -> None:
    assert len(IDS.write("1", 40)) == 40
    assert len(str(WORDS.write("1", 40)).split()) in (15, 16)  # (40 - 10) / 2


def test_the_same_seed_asks_the_same() -> None:
    mix = Mix({"a": 1, "b": 1}, parse_lengths("uniform:5-50", ""), FIXED, turns=2, cancel_share=0.5, seed=7)
    assert [mix.session(n, WORDS) for n in range(20)] == [mix.session(n, WORDS) for n in range(20)]


def test_models_come_by_their_weights_and_clients_leave_by_their_share() -> None:
    mix = Mix({"base": 3, "adapter": 1}, FIXED, Lengths("fixed", 9), cancel_share=0.2)
    asked = [mix.session(n, WORDS) for n in range(2000)]
    leaving = [turn.cancel_after for session in asked for turn in session.turns if turn.cancel_after is not None]
    assert sum(session.model == "adapter" for session in asked) / 2000 == pytest.approx(0.25, abs=0.03)
    assert len(leaving) / 2000 == pytest.approx(0.2, abs=0.03)
    assert (min(leaving), max(leaving)) == (1, 8)


def written(folder: Path, *calls: object) -> Path:
    path = folder / "trace.jsonl"
    path.write_text("".join(f"{json.dumps(call)}\n" for call in calls))
    return path


def test_a_trace_begins_at_its_first_request(tmp_path: Path) -> None:
    later = {"time": 12.5, "prompt": "hello", "output_tokens": 3, "model": "a"}
    calls = load_trace(written(tmp_path, later, {"time": 10, "input_tokens": 9, "output_tokens": 4}))
    assert [(c.time, c.input_tokens, c.prompt, c.model) for c in calls] == [(0, 9, None, None), (2.5, 0, "hello", "a")]


@pytest.mark.parametrize(
    ("calls", "told"),
    [
        ([], "the trace is empty"),
        ([{"time": 1, "output_tokens": 1}], "either `input_tokens` or `prompt`"),
        ([{"time": -1, "input_tokens": 1, "output_tokens": 1}], "`time` is not a number from 0 on"),
        ([{"time": 1, "input_tokens": 1, "output_tokens": 1, "hash_ids": []}], "unknown key 'hash_ids'"),
        ([7], "line 1: is not a JSON object"),
    ],
)
def test_a_wrong_trace_is_told_by_its_line(tmp_path: Path, calls: list[object], told: str) -> None:
    with pytest.raises(InputError, match=told):
        load_trace(written(tmp_path, *calls))
