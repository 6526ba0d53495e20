"""The real runner, and the engine on top of it: arithmetic that does not depend on who else is served."""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conch.engine import Engine, EngineConfig, Request, SamplingParams, Slot
from conch.engine import runner as runner_module
from conch.engine.drafters import ModelDrafter, NgramDrafter
from conch.engine.runner import OpenVINORunner
from conch.engine.scheduler import CHUNK
from conch.engine.speculation import Speculation
from conch_build.errors import SetupError
from conch_build.machine import has_bf16
from conch_build.manifest import EngineManifest
from conch_build.sizing import kv_bytes_per_token, kv_pool_blocks
from tests.build.compiled import Logits, blocks, compile_checkpoint, decode, greedy, prefill
from tests.build.tiny import write_tiny
from tests.engine.conftest import Answer, ask

pytest.importorskip("openvino")

LONG = 200
"""Tokens of the longest prompt here: two chunks."""


@dataclass
class Real:
    """A compiled engine's folder, its manifest and one loaded runner."""

    name: str
    folder: Path
    manifest: EngineManifest
    runner: OpenVINORunner

    @classmethod
    def load(cls, name: str, folder: Path) -> Real:
        manifest = EngineManifest.load(folder)
        return cls(name, folder, manifest, OpenVINORunner(folder, manifest))

    def prompts(self, count: int, longest: int = LONG) -> list[list[int]]:
        """Random prompts of 2 to `longest` tokens, the first one the longest."""
        rng = random.Random(0)
        lengths = [longest, *(rng.randint(2, longest) for _ in range(count - 1))]
        return [[rng.randrange(3, self.manifest.vocab_size) for _ in range(length)] for length in lengths]

    def runner_with(self, **cache: Any) -> OpenVINORunner:
        changed = self.manifest.kv_cache.model_copy(update=cache)
        return OpenVINORunner(self.folder, self.manifest.model_copy(update={"kv_cache": changed}))


TINY: dict[str, dict[str, Any]] = {
    "tiny-f32": {"precision": "f32", "cache": "f32", "kv_cache": {"size": "32MiB"}},
    "tiny-f32-u8": {"precision": "f32", "cache": "u8", "kv_cache": {"size": "16MiB"}},
    "tiny-bf16-u8": {"precision": "bf16", "cache": "u8", "kv_cache": {"size": "16MiB"}},
}


@pytest.fixture(scope="module", params=[*TINY, pytest.param("sample-int8", marks=pytest.mark.slow)])
def real(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Real:
    if request.param == "sample-int8":
        return Real.load(request.param, request.getfixturevalue("sample_build").engine.path)
    if "bf16" in request.param and not has_bf16():
        pytest.skip("this CPU has no bf16 arithmetic")
    folder = tmp_path_factory.mktemp("tiny")
    source = write_tiny(folder / "source", dtype="bfloat16")
    compile_checkpoint(source, folder / "engine", **TINY[request.param])
    return Real.load(request.param, folder / "engine")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Real:
    folder = tmp_path_factory.mktemp("tiny")
    compile_checkpoint(write_tiny(folder / "source"), folder / "engine", cache="u8")
    return Real.load("tiny", folder / "engine")


# --- a step


def test_decoding_gives_the_same_bits_alone_and_in_any_batch_and_order(real: Real) -> None:
    prompts = real.prompts(32)
    tables = [blocks(real.runner, LONG + 8, first=7 * number) for number in range(32)]
    for prompt, table in zip(prompts, tables, strict=True):
        prefill(real.runner, prompt, table)

    def rows_of(order: Sequence[int], new: Sequence[Sequence[int]]) -> dict[int, list[Logits]]:
        """Logits of each sequence in `order` as it decodes `new[step]`."""
        got: dict[int, list[Logits]] = {number: [] for number in order}
        for step, tokens in enumerate(new):
            slots = [Slot([tokens[n]], len(prompts[n]) + step, tables[n], True) for n in order]
            rows = real.runner.step(slots)
            assert rows is not None
            for number, logits in zip(order, rows.logits, strict=True):
                got[number].append(logits.copy())
        return got

    rng = np.random.default_rng(1)
    new = rng.integers(3, real.manifest.vocab_size, (3, 32)).tolist()
    alone = {number: rows_of([number], new)[number] for number in (0, 5, 31)}
    for size in (2, 8, 32):
        for _ in range(2):
            others = [n for n in rng.permutation(32).tolist() if n not in alone][: max(0, size - len(alone))]
            order = rng.permutation([*others, *list(alone)[:size]]).tolist()
            mixed = rows_of(order, new)
            for number in set(order) & set(alone):
                assert np.array_equal(mixed[number], alone[number]), (size, number)


def test_a_prompt_in_chunks_gives_the_same_bits_whatever_is_computed_beside_it(real: Real) -> None:
    prompt, *others = real.prompts(6)
    table = blocks(real.runner, LONG)
    free = [blocks(real.runner, LONG, first=7 * number) for number in range(1, 6)]

    def chunked(company: Callable[[int], list[Slot]]) -> Logits:
        rows = None
        for past in range(0, LONG, CHUNK):
            chunk = prompt[past : past + CHUNK]
            own = Slot(chunk, past, table, past + len(chunk) == LONG)
            rows = real.runner.step([*company(past), own])
        assert rows is not None
        logits: Logits = rows.logits[-1].copy()
        return logits

    def decoding(past: int) -> list[Slot]:
        number = past // CHUNK
        return [Slot([other[number]], number, each, True) for other, each in zip(others, free, strict=True)]

    prefilling = [Slot(other, 0, each, False) for other, each in zip(others, free, strict=True)]

    alone = chunked(lambda past: [])
    assert np.array_equal(chunked(decoding), alone)
    assert np.array_equal(chunked(lambda past: prefilling[:1]), alone)
    assert np.array_equal(chunked(lambda past: prefilling), alone)


def test_a_step_that_samples_nothing_gives_nothing_and_still_writes_its_keys(real: Real) -> None:
    prompt = real.prompts(1)[0]
    whole = prefill(real.runner, prompt, blocks(real.runner, LONG))
    table = blocks(real.runner, LONG, first=7)
    assert real.runner.step([Slot(prompt[:CHUNK], 0, table, False)]) is None
    rest = prefill(real.runner, prompt[CHUNK:], table, past=CHUNK)
    assert rest.argmax() == whole.argmax()
    assert abs(rest - whole).max() < 0.01 * abs(whole).max()
    assert real.runner.step([Slot([5], 0, table, False)]) is None, "a lone token is padded, and is not sampled"


def test_only_sampled_slots_have_rows_and_they_keep_their_order(real: Real) -> None:
    one, two, three = (prompt[:20] for prompt in real.prompts(30, longest=40)[:3])
    tables = [blocks(real.runner, 20, first=number) for number in range(3)]
    rows = real.runner.step(
        [Slot(three, 0, tables[0], True), Slot(two, 0, tables[1], False), Slot(one, 0, tables[2], True)]
    )
    assert rows is not None and len(rows.logits) == len(rows.top_ids) == 2
    got = [row.copy() for row in rows.logits]
    assert np.array_equal(got[0], prefill(real.runner, three, tables[0]))
    assert np.array_equal(got[1], prefill(real.runner, one, tables[2]))


def test_what_is_left_in_blocks_and_where_they_lie_changes_nothing(real: Real) -> None:
    prompt = real.prompts(1)[0][:70]
    table = blocks(real.runner, 90)
    answer = greedy(real.runner, prompt, 20, table)
    logits = decode(real.runner, answer[:3], table, past=70)
    scattered = [11, 3, 8]
    for cache in range(real.manifest.num_layers):
        for kind in ("key", "value"):  # what an earlier sequence may leave there: here, not-a-number
            real.runner._request.get_tensor(f"{kind}_cache.{cache}").data.view(np.uint8)[:12] = 0xFF
    assert greedy(real.runner, prompt, 20, scattered) == answer
    assert np.array_equal(decode(real.runner, answer[:3], scattered, past=70), logits)


# --- memory and refusals


def resident_mib() -> float:
    import psutil

    return float(psutil.Process().memory_info().rss / 2**20)


def test_the_cache_takes_memory_only_as_blocks_are_used_and_steps_leak_none(tiny: Real) -> None:
    before = resident_mib()
    runner = tiny.runner_with(size_bytes=1 << 30)
    assert resident_mib() - before < 200
    token_bytes = kv_bytes_per_token(2, 2, 16, "u8")
    assert runner.num_blocks == kv_pool_blocks(1 << 30, 32, token_bytes), "as `conch check` counts them"
    slots = [Slot([7], 5, [number], True) for number in range(16)]
    for _ in range(50):
        runner.step(slots)
    warm = resident_mib()
    for _ in range(400):
        runner.step(slots)
    assert resident_mib() - warm < 8


def test_a_cache_that_does_not_fit_is_refused(tiny: Real) -> None:
    with pytest.raises(SetupError, match=r"no memory for a KV cache of .*TiB") as refused:
        tiny.runner_with(size_bytes=1 << 50)
    assert refused.value.where == "engine.kv_cache"


def test_a_cpu_without_bf16_is_refused_a_bf16_engine(tiny: Real, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_module, "has_bf16", lambda: False)
    manifest = tiny.manifest.model_copy(update={"precision": "bf16"})
    with pytest.raises(SetupError, match=r"this CPU lacks avx512_bf16.*engine\.precision: f32"):
        OpenVINORunner(tiny.folder, manifest)
    OpenVINORunner(tiny.folder, tiny.manifest)


def test_an_engine_that_openvino_cannot_load_is_a_clear_error(tiny: Real, tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="OpenVINO cannot load the engine"):
        tiny.runner_with(dtype="bf16")
    with pytest.raises(SetupError, match="OpenVINO cannot load the engine") as refused:
        OpenVINORunner(tmp_path, tiny.manifest)
    assert refused.value.where == str(tmp_path)


# --- the engine on top

GREEDY = SamplingParams(temperature=0.0, end_ids=frozenset())
ANSWER = 32
LONGER = 100
"""Three more blocks: enough to outgrow a small pool."""


@pytest.fixture
def engine_over(real: Real) -> Iterator[Callable[..., Engine]]:
    """`engine_over(runner=None, **config)`: engines over the real runner, closed in the end."""
    engines: list[Engine] = []

    def make(runner: OpenVINORunner | None = None, speculation: Speculation | None = None, **config: Any) -> Engine:
        changed = dataclasses.replace(EngineConfig.from_manifest(real.manifest), **config)
        engines.append(Engine(runner or real.runner, changed, speculation))
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()


def answers_of(
    engine: Engine, prompts: Sequence[list[int]], *, length: int = ANSWER, delays: Sequence[float] = ()
) -> list[list[int]]:
    """Greedy answers of `length` tokens; each prompt is submitted after its delay in seconds."""
    answers: list[Answer] = []
    for number, prompt in enumerate(prompts):
        if delays:
            time.sleep(delays[number])
        answers.append(ask(engine, Request(f"{id(answers)}-{number}", prompt, length, GREEDY)))
    return [answer.wait(120).tokens for answer in answers]


def test_greedy_answers_are_the_same_alone_together_and_in_a_random_mix(
    real: Real, engine_over: Callable[..., Engine]
) -> None:
    engine = engine_over(reuse=False)
    prompts = real.prompts(8)
    alone = [answers_of(engine, [prompt])[0] for prompt in prompts]
    assert all(len(answer) == ANSWER for answer in alone)
    assert answers_of(engine, prompts) == alone
    rng = random.Random(2)
    company = real.prompts(24, longest=60)[8:]
    mix = [*prompts, *company]
    order = rng.sample(range(len(mix)), len(mix))
    mixed = answers_of(engine, [mix[n] for n in order], delays=[rng.random() * 0.01 for _ in mix])
    assert [mixed[order.index(number)] for number in range(8)] == alone


def test_reuse_and_preemption_change_no_answer(real: Real, engine_over: Callable[..., Engine]) -> None:
    """Whatever is computed again, or not at all, is computed in the shapes that round alike."""
    shared = real.prompts(1, longest=96)[0]
    prompts = [shared + prompt for prompt in real.prompts(12, longest=40)]
    prompts += [[*shared, 5], [*shared, 5, 6], shared]  # one token behind the shared blocks, two, none
    plain = answers_of(engine_over(reuse=False), prompts, length=LONGER)

    reusing = engine_over(reuse=True)
    answers_of(reusing, [[*shared, 3]])
    assert answers_of(reusing, prompts, length=LONGER) == plain
    assert reusing.stats().prefix_hit_tokens_total >= 96 * 12

    token_bytes = kv_bytes_per_token(
        real.manifest.num_layers, real.manifest.num_kv_heads, real.manifest.head_dim, real.manifest.kv_cache.dtype
    )
    cramped = engine_over(real.runner_with(size_bytes=40 * 32 * token_bytes), reuse=False)
    assert answers_of(cramped, prompts, length=LONGER) == plain
    assert cramped.stats().preemptions_total > 0


def test_speculation_changes_no_answer(real: Real, engine_over: Callable[..., Engine]) -> None:
    """The draft is the model itself, made to err now and then: tokens are taken and refused at every place."""

    class Erring(ModelDrafter):
        def guess(self, sequences: Any, rooms: Any) -> None:
            super().guess(sequences, rooms)
            for sequence in sequences:
                if sequence.draft:
                    sequence.draft[len(sequence.tokens) % len(sequence.draft)] = 17

    prompts = real.prompts(8, longest=60)
    plain = answers_of(engine_over(reuse=False), prompts, length=LONGER)
    draft = Erring(real.runner_with(size_bytes=real.manifest.kv_cache.size_bytes))
    for speculation in (Speculation(draft, 5), Speculation(NgramDrafter(3), 4)):
        engine = engine_over(speculation=speculation)
        assert answers_of(engine, prompts, length=LONGER) == plain
        assert engine.stats().accepted_tokens_total > 0


def test_several_answers_write_into_copies_of_the_prompts_last_block(
    real: Real, engine_over: Callable[..., Engine]
) -> None:
    (prompt,) = real.prompts(1, longest=45)
    sampling = SamplingParams(seed=3, temperature=0.8, top_k=40, end_ids=frozenset())
    engine = engine_over()
    answer = ask(engine, Request("several", prompt, ANSWER, sampling, n=3)).wait(120)
    assert answer.of(0) == ask(engine, Request("one", prompt, ANSWER, sampling)).wait(120).tokens
    assert len({tuple(answer.of(index)) for index in range(3)}) == 3


def test_the_caches_take_what_the_arithmetic_says(real: Real) -> None:
    """Blocks are counted by `sizing`, for a plan as for a loaded engine: it must be right to the byte."""
    taken = sum(cache.nbytes for cache in real.runner._caches)
    assert taken == (real.runner.num_blocks + 1) * real.manifest.kv_block_bytes, "and one block of padding"
