"""Guided requests in a running engine: beside others, while they are compiled, and to their end."""

from __future__ import annotations

import dataclasses
import json
import re
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from conch.engine import Engine, EngineConfig, Request, SamplingParams
from conch.engine.drafters import ModelDrafter, NgramDrafter
from conch.engine.guidance import Guidance
from conch.engine.guide import Guide
from conch.engine.guided import Grammar
from conch.engine.speculation import Speculation
from conch_build.errors import OverloadedError, RequestError, UnsupportedError
from tests.engine.conftest import Answer, ask
from tests.engine.tiny_vocabulary import END, Pen
from tests.engine.toy_runner import ToyRunner

REGEX = Guide("regex", "[ab]{3}-[0-9]{1,5}x")
LIST = Guide("json_schema", '{"type": "array", "items": {"enum": ["ab", "abc", 12]}, "minItems": 1, "maxItems": 4}')
CHOICE = Guide("choice", '["yes", "yes, please", "no"]')
GRAMMAR = Guide("ebnf_grammar", 'root ::= "(" root ")" | [a-c]{2}')


@pytest.fixture(scope="module")
def pen(tmp_path_factory: pytest.TempPathFactory) -> Pen:
    return Pen(tmp_path_factory.mktemp("tokenizer"))


def engine_of(pen: Pen, speculation: Speculation | None = None, **config: Any) -> Engine:
    settings = EngineConfig(**{"max_seq_len": 256, "end_ids": frozenset({END}), **config})
    runner = ToyRunner(num_blocks=400, vocab_size=pen.size)
    guidance = Guidance(pen.folder, pen.size, frozenset({END}))
    return Engine(runner, settings, speculation, guidance=guidance)


@pytest.fixture(scope="module")
def engine(pen: Pen) -> Iterator[Engine]:
    with engine_of(pen) as engine:
        yield engine


def guided(name: str, guide: Guide | None, max_tokens: int = 60, *, n: int = 1, **params: Any) -> Request:
    return Request(name, [5, 6, len(name)], max_tokens, SamplingParams(guide=guide, **params), n=n)


def fits(guide: Guide, text: str) -> bool:
    match guide.kind:
        case "regex":
            return re.fullmatch(guide.text, text) is not None
        case "choice":
            return text in json.loads(guide.text)
        case "json_schema":
            items = json.loads(text)
            return 1 <= len(items) <= 4 and all(item in ("ab", "abc", 12) for item in items)
    return re.fullmatch(r"\(*[a-c]{2}\)*", text) is not None and text.count("(") == text.count(")")


WAYS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"seed": 3},
    {"seed": 4, "top_k": 3, "top_p": 0.8},
    {"temperature": 0.0, "repetition_penalty": 1.3, "logit_bias": {70: 3.0}},
    {"seed": 5, "end_ids": frozenset()},
    {"seed": 6, "min_tokens": 4, "log_probs": True},
]


# --- answers


@pytest.mark.parametrize("params", WAYS, ids=str)
@pytest.mark.parametrize("guide", [REGEX, LIST, CHOICE, GRAMMAR], ids=lambda guide: guide.kind)
def test_every_way_of_choosing_follows_the_guide(
    engine: Engine, pen: Pen, guide: Guide, params: dict[str, Any]
) -> None:
    # A toy model would open brackets until it runs out of tokens.
    params = {**params, "logit_bias": {**params.get("logit_bias", {}), pen.ids("(")[0]: -5.0}}
    answer = ask(engine, guided("a", guide, **params)).wait()
    assert answer.reason == "stop" and fits(guide, pen.text(answer.tokens)), pen.text(answer.tokens)


def test_an_answer_that_is_all_its_guide_allows_ends_at_once(engine: Engine, pen: Pen) -> None:
    for end_ids in (None, frozenset[int]()):
        answer = ask(engine, guided("a", Guide("regex", "abc"), temperature=0.0, end_ids=end_ids)).wait()
        assert (answer.reason, pen.text(answer.tokens)) == ("stop", "abc")
        assert answer.usage.completion_tokens == len(answer.tokens)
    cut = ask(engine, guided("a", Guide("regex", "a{50}"), max_tokens=2, temperature=0.0)).wait()
    assert cut.reason == "length" and len(cut.tokens) == 2


def test_many_guides_and_none_share_a_batch_and_nobody_notices(engine: Engine, pen: Pen) -> None:
    plain = [guided(f"plain {number}", None, 40, seed=number) for number in range(6)]
    alone = [ask(engine, request).wait().tokens for request in plain]
    guides = [REGEX, LIST, CHOICE]
    mixed = [guided(f"{number}", guides[number % 3], seed=number) for number in range(12)]
    apart = [ask(engine, request).wait().tokens for request in mixed]
    answers = [ask(engine, request) for request in [*mixed[:6], *plain, *mixed[6:]]]
    named = {answer.wait().outputs[0].request_id: answer for answer in answers}
    assert [named[request.id].tokens for request in plain] == alone
    assert [named[request.id].tokens for request in mixed] == apart
    assert all(fits(guides[number % 3], pen.text(tokens)) for number, tokens in enumerate(apart))


def test_each_of_several_answers_follows_the_guide(engine: Engine, pen: Pen) -> None:
    answer = ask(engine, guided("a", REGEX, n=5, seed=1)).wait()
    texts = [pen.text(answer.of(index)) for index in range(5)]
    assert all(fits(REGEX, text) for text in texts) and len(set(texts)) > 1


@pytest.mark.parametrize("method", ["draft", "ngram"])
def test_speculation_changes_no_guided_answer(engine: Engine, pen: Pen, method: str) -> None:
    draft = ModelDrafter(ToyRunner(num_blocks=400, vocab_size=pen.size)) if method == "draft" else NgramDrafter(3)
    speculation = Speculation(draft, 4)
    speculation._payoff.length = lambda sequences: max(speculation._payoff._lengths)  # type: ignore[method-assign]
    with engine_of(pen, speculation) as quick:
        for number, guide in enumerate([REGEX, LIST, Guide("regex", "(ab){5,20}c"), Guide("json")]):
            for params in ({"temperature": 0.0}, {"seed": number}):
                request = guided(f"{number}", guide, 50, **params)
                assert ask(quick, request).wait().tokens == ask(engine, request).wait().tokens
        assert quick.stats().accepted_tokens_total > 0


# --- what goes wrong


def test_a_wrong_guide_is_the_error_of_its_request_alone(engine: Engine, pen: Pen) -> None:
    others = [ask(engine, guided(f"{number}", REGEX, seed=number)) for number in range(3)]
    wrong = ask(engine, guided("wrong", Guide("json_schema", '{"type": "strng"}'), n=2)).wait()
    errors = [output.error for output in wrong.outputs]
    assert len(errors) == 2 and all(isinstance(error, RequestError) for error in errors)
    assert wrong.reason == "error" and "strng" in str(wrong.error)
    assert all(fits(REGEX, pen.text(answer.wait().tokens)) for answer in others)
    assert ask(engine, guided("next", CHOICE)).wait().reason == "stop"


def test_a_guide_and_bad_words_that_leave_nothing_are_the_requests_own_error(engine: Engine, pen: Pen) -> None:
    words = tuple((token,) for token in [*pen.ids("y"), pen.piece("yes"), *pen.ids("n")])
    answer = ask(engine, guided("a", CHOICE, bad_words=words)).wait()
    assert isinstance(answer.outputs[-1].error, RequestError) and "forbid every token" in str(answer.error)


def test_an_engine_without_a_tokenizer_refuses_guides_by_name() -> None:
    with Engine(ToyRunner(), EngineConfig()) as bare, pytest.raises(UnsupportedError) as refused:
        bare.submit(guided("a", REGEX), Answer())
    assert refused.value.param == "guided_decoding_guide_type"


def test_an_answer_begun_by_another_engine_follows_its_guide_to_the_end(engine: Engine, pen: Pen) -> None:
    whole = ask(engine, guided("whole", REGEX, temperature=0.0)).wait().tokens
    assert len(whole) > 2
    for cut in range(1, len(whole)):
        begun = dataclasses.replace(guided("begun", REGEX, cut, temperature=0.0), keep_state=True)
        state = ask(engine, begun).wait().outputs[-1].state
        rest = ask(engine, dataclasses.replace(guided("going", REGEX, temperature=0.0), state=state)).wait()
        assert [*state.answer, *rest.tokens] == whole


# --- while a guide is compiled


class Held:
    """An engine whose guides are compiled only when it is let go."""

    def __init__(self, pen: Pen, monkeypatch: pytest.MonkeyPatch, **config: Any) -> None:
        self.let_go = threading.Event()
        self.compiled: list[str] = []
        self.engine = engine_of(pen, **config)
        self._guides = self.engine._lobby._guidance._guides  # type: ignore[union-attr]
        self._compile_now = self._guides._compile
        monkeypatch.setattr(self._guides, "_compile", self._compile)

    def _compile(self, guide: Guide) -> Grammar:
        self.let_go.wait(30)
        self.compiled += json.loads(guide.text)
        return self._compile_now(guide)


@pytest.fixture
def held(pen: Pen, monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    held = Held(pen, monkeypatch, max_batch_size=2, max_queue_size=1)
    yield held
    held.let_go.set()
    held.engine.close()


def test_others_go_on_while_a_guide_is_compiled(held: Held, pen: Pen) -> None:
    waits = ask(held.engine, guided("waits", CHOICE))
    assert ask(held.engine, guided("goes", None, 20)).wait().tokens and not waits.outputs
    assert held.engine.stats().waiting == 1 and held.engine.healthy()
    held.let_go.set()
    assert fits(CHOICE, pen.text(waits.wait().tokens))


def test_a_request_may_leave_while_its_guide_is_compiled(held: Held) -> None:
    cancelled = ask(held.engine, guided("cancelled", CHOICE))
    late = Request("late", [1], 9, SamplingParams(guide=CHOICE), deadline=time.monotonic() + 0.2)
    left = Request("left", [1], 9, SamplingParams(guide=CHOICE), is_cancelled=lambda: True)
    answers = [ask(held.engine, late), ask(held.engine, left)]
    assert held.engine.cancel("cancelled")
    assert cancelled.wait(5).reason == "cancelled"
    assert [answer.wait(5).reason for answer in answers] == ["deadline", "cancelled"]
    assert held.engine.stats().waiting == 0
    held.let_go.set()
    assert ask(held.engine, guided("next", CHOICE)).wait().reason == "stop"


def test_a_guide_that_nobody_waits_for_any_more_is_not_compiled(pen: Pen, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(pen, monkeypatch)
    asked = [ask(held.engine, guided(name, Guide("choice", f'["{name}"]'))) for name in ("first", "gone", "left")]
    stays = ask(held.engine, guided("stays", Guide("choice", '["left"]')))
    held.engine.cancel("gone"), held.engine.cancel("left")
    assert [answer.wait(5).reason for answer in asked[1:]] == ["cancelled"] * 2
    held.let_go.set()
    assert stays.wait().reason == "stop" and held.compiled == ["first", "left"]
    again = ask(held.engine, guided("again", Guide("choice", '["gone"]')))
    assert pen.text(again.wait().tokens) == "gone"
    held.engine.close()


def test_requests_whose_guides_are_compiled_count_in_the_queue(held: Held) -> None:
    answers = [ask(held.engine, guided(name, CHOICE)) for name in "abc"]
    with pytest.raises(OverloadedError):
        held.engine.submit(guided("d", None), Answer())
    held.let_go.set()
    assert [answer.wait().reason for answer in answers] == ["stop"] * 3


def test_who_waits_too_long_for_others_guides_is_told_so(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conch.engine.guidance.COMPILED_WITHIN_S", 0.2)
    answer = ask(held.engine, guided("a", CHOICE)).wait(5)
    assert isinstance(answer.outputs[-1].error, OverloadedError)


def test_closing_ends_who_waits_for_a_guide(held: Held) -> None:
    answer = ask(held.engine, guided("a", CHOICE))
    held.engine.close()
    assert answer.wait(5).reason == "cancelled"
