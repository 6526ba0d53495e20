"""An answer started by one engine and finished by another, token for token."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conch.engine import Engine, Request, SamplingParams
from conch.engine.state import KvState
from conch_build.errors import RequestError, UnsupportedError
from conch_build.pipeline import BuildResult
from tests.engine.conftest import MakeEngine, ask
from tests.engine.test_engine import Gate, alone, settled
from tests.engine.toy_runner import ToyRunner

PROMPT = [token % 61 for token in range(3, 40)]
GREEDY = SamplingParams(temperature=0.0, end_ids=frozenset())
SAMPLED = SamplingParams(
    seed=8, top_p=0.9, repetition_penalty=1.2, frequency_penalty=0.3, end_ids=frozenset(), stop_words=((1, 2, 3),)
)


def started(engine: Engine, tokens: int, sampling: SamplingParams, prompt: list[int] = PROMPT) -> KvState:
    answer = ask(engine, Request("started", prompt, tokens, sampling, keep_state=True)).wait()
    state = answer.outputs[-1].state
    assert state is not None and state.answer == tuple(answer.tokens)
    return state


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 9, 19])
def test_the_answer_is_the_same_wherever_it_is_handed_over(
    make_engine: MakeEngine, sampling: SamplingParams, tokens: int
) -> None:
    frame = started(make_engine(), tokens, sampling).to_bytes()
    second = make_engine(ToyRunner(num_blocks=80))
    company = ask(second, Request("company", [9] * 20, 20, GREEDY))
    ask(second, Request("before", PROMPT, 2, GREEDY)).wait()
    state = KvState.from_bytes(frame)
    rest = ask(second, Request("rest", PROMPT, 20, sampling, state=state)).wait()
    assert [*state.answer, *rest.tokens] == alone(PROMPT, 20, sampling)
    assert rest.reason == "length"
    assert company.wait().tokens == alone([9] * 20, 20, GREEDY)
    assert settled(second)


def test_a_handed_over_answer_survives_preemption(make_engine: MakeEngine) -> None:
    state = started(make_engine(), 3, GREEDY)
    runner = Gate(num_blocks=24)
    engine = make_engine(runner, reuse=False)
    first = ask(engine, Request("first", list(range(30)), 60, GREEDY))
    rest = ask(engine, Request("rest", PROMPT, 40, GREEDY, state=state))
    runner.open()
    rest.wait()
    assert first.wait().tokens == alone(list(range(30)), 60, GREEDY)
    assert [*state.answer, *rest.tokens] == alone(PROMPT, 40, GREEDY)
    assert engine.stats().preemptions_total > 0


def test_blocks_that_were_taken_up_can_be_reused(make_engine: MakeEngine) -> None:
    state = started(make_engine(), 1, GREEDY)
    engine = make_engine()
    ask(engine, Request("rest", PROMPT, 10, GREEDY, state=state)).wait()
    again = ask(engine, Request("again", PROMPT, 10, GREEDY)).wait()
    assert again.usage.cached_tokens == 36
    assert again.tokens == alone(PROMPT, 10, GREEDY)


def test_a_damaged_frame_is_refused_wherever_it_is_damaged(make_engine: MakeEngine) -> None:
    frame = started(make_engine(), 1, GREEDY).to_bytes()
    assert KvState.from_bytes(frame).prompt == tuple(PROMPT)
    for at in range(0, len(frame), 7):
        damaged = bytes([*frame[:at], frame[at] ^ 1, *frame[at + 1 :]])
        with pytest.raises(RequestError, match="KV state"):
            KvState.from_bytes(damaged)
    for length in (0, 1, 8, 15, 16, 40, len(frame) - 1):
        with pytest.raises(RequestError, match="KV state"):
            KvState.from_bytes(frame[:length])


@pytest.mark.parametrize(
    "change",
    [
        {"answer": ["a"]},
        {"answer": 5},
        {"prompt": [[1]]},
        {"computed": 1e999},
        {"arrays": [{"dtype": "O", "shape": [1]}]},
        {"arrays": [{"dtype": "<u8", "shape": [1 << 40, 1 << 40]}]},
        {"arrays": ["x"]},
        [],
        "[" * 100_000,
    ],
    ids=lambda change: str(change)[:30],
)
def test_a_whole_frame_with_a_senseless_header_is_refused(make_engine: MakeEngine, change: Any) -> None:
    frame = started(make_engine(), 1, GREEDY).to_bytes()[:-32]
    end = 16 + int.from_bytes(frame[8:16], "little")
    header = json.dumps({**json.loads(frame[16:end]), **change} if isinstance(change, dict) else change)
    encoded = (change if isinstance(change, str) else header).encode()
    body = frame[:8] + len(encoded).to_bytes(8, "little") + encoded + frame[end:]
    with pytest.raises(RequestError, match="KV state"):
        KvState.from_bytes(body + blake2b(body, digest_size=32).digest())


def test_a_state_that_does_not_fit_is_refused(make_engine: MakeEngine) -> None:
    engine = make_engine()
    state = started(engine, 2, GREEDY)
    request = Request("a", PROMPT, 10, GREEDY, state=state)
    for changed, why in (
        (dataclasses.replace(request, prompt=PROMPT[1:]), "another prompt"),
        (dataclasses.replace(request, max_tokens=2), "max_tokens is 2"),
        (dataclasses.replace(request, state=dataclasses.replace(state, layout="other")), "another model"),
        (dataclasses.replace(request, state=dataclasses.replace(state, computed=0)), "0 of 39"),
        (dataclasses.replace(request, state=dataclasses.replace(state, computed=60)), "60 of 39"),
        (dataclasses.replace(request, state=dataclasses.replace(state, computed=20)), "the 5 blocks of 20"),
        (dataclasses.replace(request, state=dataclasses.replace(state, blocks=[])), "the 10 blocks of 38"),
        (dataclasses.replace(request, state=dataclasses.replace(state, answer=(61, 2))), "not in the vocabulary"),
        (dataclasses.replace(request, state=dataclasses.replace(state, answer=(-1, 2))), "not in the vocabulary"),
    ):
        with pytest.raises(RequestError, match=why):
            engine.submit(changed, print)
    scored = SamplingParams(temperature=0.0, prompt_log_probs=True)
    with pytest.raises(UnsupportedError, match="`prompt_log_probs`"):
        engine.submit(dataclasses.replace(request, sampling=scored), print)
    with pytest.raises(UnsupportedError, match="`n`"):
        engine.submit(dataclasses.replace(request, n=2), print)


SECOND_PROCESS = """
import json, sys, threading

from pathlib import Path
from typing import Any
from conch.engine import Engine, Request, SamplingParams
from conch.engine.state import KvState

folder, frame, prompt = sys.argv[1], Path(sys.argv[2]).read_bytes(), json.loads(sys.argv[3])
tokens, ended = [], threading.Event()

def sink(output):
    tokens.extend(output.tokens)
    if output.final:
        ended.set()

sampling = SamplingParams(temperature=0.0, end_ids=frozenset())
with Engine.load(Path(folder)) as engine:
    engine.submit(Request("rest", prompt, 40, sampling, state=KvState.from_bytes(frame)), sink)
    ended.wait(60)
print(json.dumps(tokens))
"""


@pytest.mark.slow
def test_another_process_finishes_what_this_one_started(sample_build: BuildResult, tmp_path: Path) -> None:
    """With the sample model: prompt and five tokens here, the rest there."""
    rng = np.random.default_rng(5)
    prompt = [int(token) for token in rng.integers(100, 40_000, 150)]
    with Engine.load(sample_build.engine.path) as engine:
        whole = ask(engine, Request("whole", prompt, 40, GREEDY)).wait().tokens
        state = started(engine, 5, GREEDY, prompt)
    frame = tmp_path / "state"
    frame.write_bytes(state.to_bytes())
    command = [sys.executable, "-c", SECOND_PROCESS, str(sample_build.engine.path), str(frame), json.dumps(prompt)]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    assert [*state.answer, *json.loads(printed.splitlines()[-1])] == whole
