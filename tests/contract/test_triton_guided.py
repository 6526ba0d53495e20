"""Guided decoding through a running Triton: the sample model's answers are what their guides say."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from tokenizers import Tokenizer

from conch_build.pipeline import BuildResult
from tests.contract.triton_calls import Reply, ask, tokens

pytestmark = pytest.mark.usefixtures("idle_afterwards")

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 30},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "pets": {"type": "array", "items": {"enum": ["cat", "dog"]}, "maxItems": 3},
    },
    "required": ["name", "age", "pets"],
}
TEXT = "😀👩‍👩‍👧 깰中文 ❤️ é  two  spaces , it 's"
EXACT = {"type": "object", "properties": {"x": {"const": TEXT}}, "required": ["x"], "additionalProperties": False}
SUM = 'root ::= term (" + " term){1,3}\nterm ::= [1-9] [0-9]? | "(" root ")"'
SAMPLED = {"runtime_top_p": 1.0, "temperature": 1.0}


class Asker:
    def __init__(self, url: str, folder: Path) -> None:
        self._url = url
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer" / "tokenizer.json"))

    def reply(self, kind: str, guide: str = "", question: str = "Tell me about a person.", **more: Any) -> Reply:
        turns = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
        prompt = self._tokenizer.encode(turns, add_special_tokens=False).ids
        more = {"exclude_input_in_output": True, "guided_decoding_guide_type": kind, **more}
        if guide:
            more["guided_decoding_guide"] = guide
        return ask(self._url, "tensorrt_llm", tokens(prompt, more.pop("count", 160), **more))

    def text(self, *args: Any, **more: Any) -> str:
        """The answer, which must have come to its end."""
        reply = self.reply(*args, **more)
        assert reply.error is None and reply.finish_reason == "stop", reply
        text: str = self._tokenizer.decode(reply.ids, skip_special_tokens=False)
        return text

    def refused(self, kind: str, guide: str) -> str:
        reply = self.reply(kind, guide)
        assert reply.error is not None and reply.responses == []
        return reply.error


@pytest.fixture(scope="module")
def asker(url: str, sample_build: BuildResult) -> Asker:
    return Asker(url, sample_build.engine.path)


@pytest.mark.parametrize(
    "way", [{}, {**SAMPLED, "seed": 1}, {**SAMPLED, "seed": 2, "repetition_penalty": 1.2}], ids=str
)
def test_an_answer_satisfies_its_schema(asker: Asker, way: dict[str, Any]) -> None:
    text = asker.text("json_schema", json.dumps(PERSON), **way)
    Draft202012Validator(PERSON).validate(json.loads(text))


def test_streamed_or_not_it_is_the_same_answer(asker: Asker) -> None:
    for kind, guide in (("json_schema", json.dumps(PERSON)), ("json_schema", json.dumps(EXACT)), ("json", "")):
        streamed = asker.reply(kind, guide, streaming=True)
        assert streamed.ids == asker.reply(kind, guide).ids and len(streamed.responses) >= len(streamed.ids)


def test_every_kind_of_guide(asker: Asker) -> None:
    assert json.loads(asker.text("json_schema", json.dumps(EXACT)))["x"] == TEXT
    assert re.fullmatch(r"\(\d{3}\) \d{3}-\d{4}", asker.text("regex", r"\(\d{3}\) \d{3}-\d{4}", "A phone number?"))
    assert asker.text("choice", '["Yes", "No", "Maybe"]', "Is the sky blue?") in ("Yes", "No", "Maybe")
    assert re.fullmatch(r"[\d()+ ]{5,}", text := asker.text("ebnf_grammar", SUM, "Add some numbers."))
    assert eval(text) > 1


@pytest.mark.parametrize("question", ["Write something as JSON.", "Count up as far as you can, in digits."])
@pytest.mark.parametrize("schema", [{}, {"type": "object"}], ids=json.dumps)
def test_a_schema_that_allows_anything_gives_json_or_runs_out_of_tokens(
    asker: Asker, schema: dict[str, Any], question: str
) -> None:
    reply = asker.reply("json_schema", json.dumps(schema), question)
    text = asker._tokenizer.decode(reply.ids)
    if reply.finish_reason == "stop":
        json.loads(text)
    else:
        assert reply.finish_reason == "length"
    assert not re.search(r"\s{17}|\d{41}", re.sub(r'"(?:[^"\\]|\\.)*("|$)', '""', text, flags=re.DOTALL))


def test_a_wrong_guide_ends_its_request_alone_and_the_next_one_works(asker: Asker) -> None:
    looped = '{"$ref":"#/$defs/loop","$defs":{"loop":{"$ref":"#/$defs/loop"}}}'
    wrong = [
        ("json_schema", looped, "no answer can satisfy it"),
        ("json_schema", '{"type":"strng"}', "strng"),
        ("json_schema", '{"$ref":"http://127.0.0.1:9/s.json"}', "does not fetch"),
        ("regex", "((((", "unclosed group"),
        ("ebnf_grammar", "root ::= missing", "rule `missing` is not defined"),
        ("choice", "Yes, No", "JSON list of texts"),
    ]
    for kind, guide, words in wrong:
        error = asker.refused(kind, guide)
        assert "[RequestError param=guided_decoding_guide code=invalid_value]" in error and words in error
        assert asker.text("choice", '["Yes", "No"]') in ("Yes", "No")


def test_guided_and_unguided_requests_share_a_batch_and_nobody_notices(asker: Asker, url: str) -> None:
    plain = {"text_input": "1, 2, 3, 4, 5,", "max_tokens": 40, "end_id": -1}
    alone = ask(url, "ensemble", plain).texts
    guided = {"json_schema": json.dumps(PERSON), "regex": "[a-z ]{40,60}"}
    apart = {kind: asker.reply(kind, guide).ids for kind, guide in guided.items()}
    together: dict[str, list[Any]] = {"plain": [], **{kind: [] for kind in guided}}
    calls: list[tuple[str, Any]] = [("plain", lambda: ask(url, "ensemble", plain).texts)]
    calls += [(kind, lambda kind=kind: asker.reply(kind, guided[kind]).ids) for kind in guided]
    threads = [
        threading.Thread(target=lambda name=name, call=call: together[name].append(call())) for name, call in calls * 3
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert together == {"plain": [alone] * 3, **{kind: [ids] * 3 for kind, ids in apart.items()}}


def test_text_clients_give_guides_to_the_ensemble(url: str) -> None:
    inputs = {"text_input": "The capital of France is", "max_tokens": 20, "exclude_input_in_output": True}
    guide = {"guided_decoding_guide_type": "regex", "guided_decoding_guide": " [A-Z][a-z]{2,8}!"}
    streamed = ask(url, "ensemble", {**inputs, **guide, "stream": True})
    assert re.fullmatch(" [A-Z][a-z]{2,8}!", "".join(streamed.texts))
    refused = ask(url, "ensemble", {**inputs, **guide, "guided_decoding_guide": "("})
    assert "[RequestError param=guided_decoding_guide" in str(refused.error)


def test_the_sampling_of_a_guided_request_is_repeatable(asker: Asker) -> None:
    way = {**SAMPLED, "seed": 7, "return_log_probs": True}
    first, second = (asker.reply("json_schema", json.dumps(PERSON), **way) for _ in range(2))
    assert first.ids == second.ids
    log_probs = first.array("output_log_probs")
    assert log_probs is not None and log_probs.size == len(first.ids)
