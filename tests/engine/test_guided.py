"""What guides allow: the tokens that continue an answer, its end, and the guides that are refused."""

from __future__ import annotations

import json
import random
import re
import time
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from llguidance import LLParserLimits

from conch.engine.guide import Guide, GuideKind
from conch.engine.guided import Guides, Matcher
from conch_build.errors import RequestError, UnsupportedError
from tests.engine.tiny_vocabulary import END, Pen

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}


@pytest.fixture(scope="module")
def pen(tmp_path_factory: pytest.TempPathFactory) -> Pen:
    return Pen(tmp_path_factory.mktemp("tokenizer"))


def scribble(pen: Pen, matcher: Matcher, seed: int, longest: int = 120) -> tuple[str, bool]:
    """Any text that a matcher allows, and whether it came to its end."""
    rng, ids = random.Random(seed), list[int]()
    while len(ids) < longest:
        token = rng.choice(sorted(pen.allowed(matcher)))
        if token == END:
            return pen.text(ids), True
        ids.append(token)
        matcher.accept(token)
        if matcher.complete:
            return pen.text(ids), True
    return pen.text(ids), False


# --- what the kinds mean


@pytest.mark.parametrize(
    ("kind", "guide", "texts", "others"),
    [
        ("json", "", ['{"a": [1, null]}', "[]", "{}"], ["1", '"a"', '{"a" 1}', "[1,]", " {}"]),
        (
            "json_schema",
            json.dumps(PERSON),
            ['{"name": "é\\n", "age": -3}'],
            ['{"age": 1, "name": ""}', '{"name": ""}'],
        ),
        ("json_schema", '{"enum": ["a b", 7, null]}', ['"a b"', "7", "null"], ["a b", "8"]),
        ("json_schema", "true", ['"x"', "1.5e3", "[true]"], ["tru", "01"]),
        ("regex", r"[0-9]{2}-\w+", ["12-a", "00-A_9"], ["1-a", "12-", "12-é", "x12-a"]),
        ("regex", r"^\d+$", ["0", "12"], ["٣", "1 "]),
        ("regex", "a/b\nc| d", ["a/b\nc", " d"], ["d", "a/b"]),
        ("choice", '["yes", "yes please", "n(o)?", "né"]', ["yes", "yes please", "n(o)?", "né"], ["no", "yes p"]),
        ("ebnf_grammar", 'root ::= "a" root "b" | ""', ["ab", "aabb"], ["aab", "ba"]),
    ],
    ids=str,
)
def test_a_guide_allows_its_texts_and_no_others(
    pen: Pen, kind: GuideKind, guide: str, texts: list[str], others: list[str]
) -> None:
    assert [text for text in [*texts, *others] if pen.accepts(kind, guide, text)] == texts


SCHEMAS: list[dict[str, Any]] = [
    PERSON,
    {"type": "array", "items": {"enum": ["a", 1, None]}, "minItems": 1, "maxItems": 3},
    {
        "type": "object",
        "properties": {
            "s": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 5},
            "i": {"type": "integer", "minimum": 3, "maximum": 7},
            "f": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
        },
        "required": ["s", "i"],
        "additionalProperties": False,
    },
    {"anyOf": [{"type": "boolean"}, {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}]},
    {"type": "object", "patternProperties": {"^k[0-9]$": {"type": "null"}}, "additionalProperties": False},
    {"type": "string", "format": "date"},
    {},
    {"type": "object"},
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=json.dumps)
def test_whatever_is_written_by_a_schema_satisfies_it(pen: Pen, schema: dict[str, Any]) -> None:
    finished = 0
    for seed in range(20):
        text, ended = scribble(pen, pen.matcher("json_schema", json.dumps(schema)), seed)
        if ended:
            Draft202012Validator(schema).validate(json.loads(text))
            finished += 1
    assert finished


@pytest.mark.parametrize("seed", range(10))
def test_the_mask_and_the_quick_question_agree(pen: Pen, seed: int) -> None:
    matcher = pen.matcher("json_schema", json.dumps(PERSON))
    rng = random.Random(seed)
    for _ in range(40):
        allowed = pen.allowed(matcher)
        assert {token for token in range(pen.size) if matcher.allows(token)} == allowed
        token = rng.choice(sorted(allowed))
        if token == END:
            break
        matcher.accept(token)


def test_tokens_of_several_characters_are_allowed_where_all_of_them_fit(pen: Pen) -> None:
    matcher = pen.matcher("regex", "abc?")
    assert {pen.piece("ab"), pen.piece("abc")} < pen.allowed(matcher)
    matcher.accept(pen.piece("ab"))
    assert matcher.allows(END) and not matcher.complete and not matcher.allows(pen.piece("bc"))


def test_properties_that_a_schema_does_not_name_are_written_only_where_it_speaks_of_them(pen: Pen) -> None:
    named = {"type": "object", "properties": {"a": {"type": "null"}}}
    extra = '{"a": null, "b": 1}'
    assert not pen.accepts("json_schema", json.dumps(named), extra)
    assert pen.accepts("json_schema", json.dumps({**named, "additionalProperties": True}), extra)
    assert not pen.accepts("json_schema", json.dumps({"items": named}), f"[{extra}]")
    composed = {"allOf": [named, {"properties": {"b": {"type": "integer"}}, "required": ["b"]}]}
    assert pen.accepts("json_schema", json.dumps(composed), extra)


# --- the end of an answer


def test_the_end_is_allowed_when_the_answer_is_whole_and_then_nothing_else(pen: Pen) -> None:
    matcher = pen.matcher("regex", "ab?")
    assert END not in pen.allowed(matcher)
    matcher.accept(pen.ids("a")[0])
    assert pen.allowed(matcher) == {END, pen.ids("b")[0]} and not matcher.complete
    matcher.accept(pen.ids("b")[0])
    assert pen.allowed(matcher) == {END} and matcher.complete


def test_the_requests_own_end_ids_replace_the_models(pen: Pen) -> None:
    a, b = pen.ids("ab")
    matcher = pen.matcher("regex", "a?b", frozenset({a}))
    assert pen.allowed(matcher) == {b, pen.piece("ab")}, "`a` ends an answer, and there is none yet"
    assert not (matcher.allows(a) or matcher.allows(END))
    matcher.accept(b)
    assert pen.allowed(matcher) == {a} and matcher.complete
    without = pen.matcher("regex", "b", frozenset())
    without.accept(b)
    assert without.complete and not without.allows(END)


# --- no endless answers


def test_blanks_between_json_marks_are_few(pen: Pen) -> None:
    for text in ('{"a": 1}', '{"a":1}', '{\n  "a": [\n    1\n  ]\n}'):
        assert pen.accepts("json", "", text)
    for text in ('{  "a": 1}', '{"a":\t1}', '{\n\n"a": 1}', "{" + "\n" + " " * 16 + '"a": 1}'):
        assert not pen.accepts("json", "", text)
    for seed in range(40):
        text, _ = scribble(pen, pen.matcher("json", ""), seed)
        outside = re.sub(r'"(?:[^"\\]|\\.)*("|$)', '""', text, flags=re.DOTALL)
        assert not re.search(r"\s{17}", outside)


@pytest.mark.parametrize("schema", [{}, {"type": "number"}, {"items": {"type": "integer"}, "type": "array"}])
def test_numbers_come_to_an_end(pen: Pen, schema: dict[str, Any]) -> None:
    start = "[" if "items" in schema else ""
    matcher = pen.matcher("json_schema", json.dumps(schema))
    written = pen.write(matcher, start + "1" * 100)
    assert 20 < len(written) <= 40
    allowed = pen.allowed(matcher)
    assert not allowed & {*pen.ids("0123456789"), pen.piece("12"), pen.piece("0000")}
    assert allowed & {END, *pen.ids(",]")}


def test_digits_in_texts_and_where_a_schema_wants_them_are_not_counted(pen: Pen) -> None:
    assert pen.accepts("json", "", f'["{"7" * 200}\\"{"7" * 50}"]')
    assert pen.accepts("json_schema", '{"enum": [1e40]}', f"1{'0' * 40}")
    assert pen.accepts("json_schema", json.dumps({"type": "string", "pattern": "^[0-9]{80}$"}), f'"{"5" * 80}"')


# --- what is refused


@pytest.mark.parametrize(
    ("kind", "guide", "words"),
    [
        ("json_schema", '{"$ref":"#/$defs/loop","$defs":{"loop":{"$ref":"#/$defs/loop"}}}', "no answer can satisfy it"),
        (
            "json_schema",
            '{"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}}}',
            "no answer can satisfy it",
        ),
        ("json_schema", '{"allOf":[{"$ref":"#"}]}', "no answer can satisfy it"),
        ("json_schema", '{"type":"strng"}', "strng"),
        ("json_schema", '{"enum":[]}', "empty"),
        ("json_schema", '{"$ref":"#/$defs/none"}', "'/$defs/none' does not exist"),
        ("json_schema", '{"$ref":"http://127.0.0.1:9/s.json"}', "does not fetch"),
        ("json_schema", '{"type":"array","uniqueItems":true}', "uniqueItems"),
        ("json_schema", '{"not":{"type":"string"}}', '"not"'),
        ("json_schema", '{"type":"string","format":"nope"}', "nope"),
        ("json_schema", '{"type":"string","pattern":"(?=a)b"}', "look-around"),
        ("json_schema", '{"type":"integer","minimum":5,"maximum":3}', "minimum (5) is greater"),
        ("json_schema", '{"type":"array","uniqueItems":true,"x-guidance":{"lenient":true}}', "uniqueItems"),
        ("json_schema", "{", "does not read as JSON"),
        ("json_schema", '{"minimum": NaN}', "NaN"),
        ("json_schema", '{"const": 9223372036854775808}', "does not fit in 64 bits"),
        ("json_schema", f'{{"const": {"7" * 5000}}}', "does not fit in 64 bits"),
        ("json_schema", "7", "is an object, not 7"),
        ("json_schema", "false", "is an object, not false"),
        ("json_schema", '{"items":' * 5000, "nested too deeply"),
        ("json_schema", '{"items":' * 500 + "{}" + "}" * 500, ""),
        ("json_schema", json.dumps({"enum": [f"value {n}" for n in range(20_000)]}), "at most 131072"),
        ("regex", "(", "unclosed group"),
        ("regex", r"(a)\1", "backreferences are not supported"),
        ("regex", r"\bfoo\b", "lookarounds not supported"),
        ("regex", "(" * 5000 + "a" + ")" * 5000, ""),
        ("regex", r"[^\s\S]", "no answer can satisfy it"),
        ("regex", "", "no answer can satisfy it"),
        ("regex", ".?" * 5000, "10000 bytes; at most 8192"),
        ("choice", "yes", "JSON list of texts"),
        ("choice", "[]", "JSON list of texts"),
        ("choice", '["a", 1]', "JSON list of texts"),
        ("choice", '["a", ""]', "JSON list of texts"),
    ],
)
def test_a_wrong_guide_is_refused_with_words(pen: Pen, kind: GuideKind, guide: str, words: str) -> None:
    started = time.thread_time()
    with pytest.raises(RequestError) as refused:
        pen.matcher(kind, guide)
    assert words in refused.value.message and len(refused.value.message) < 500
    assert (refused.value.param, refused.value.code) == ("guided_decoding_guide", "invalid_value")
    assert time.thread_time() - started < 5


@pytest.mark.parametrize(
    ("kind", "guide"),
    [
        ("regex", "(a+)+b"),
        ("regex", "(.*a.{60}){3}"),
        ("regex", "((a{1000}){1000}){1000}"),
        ("regex", r"(\p{L}{1,100}\w{1,50}){1,100}"),
        ("regex", "[a-f]?" * 300 + "[a-f]" * 300),
        ("regex", ".?" * 4096),
        ("regex", ".{1000000}"),
        ("json_schema", json.dumps({"const": "a" * 100_000})),
        ("json_schema", json.dumps({"enum": [f"value {n}" for n in range(5000)]})),
        ("json_schema", json.dumps({"type": "object", "properties": {f"p{n}": {} for n in range(3000)}})),
        ("json_schema", '{"type": "array", "minItems": 1000000000, "items": {"type": "integer"}}'),
        ("json_schema", '{"type": "string", "maxLength": 1000000000}'),
        ("json_schema", '{"allOf": [' + ",".join(['{"anyOf": [{"minimum": 1}, {"maxLength": 2}]}'] * 14) + "]}"),
        (
            "json_schema",
            json.dumps(
                {
                    "$ref": "#/$defs/d24",
                    "$defs": {
                        "d0": {"type": "integer"},
                        **{f"d{n}": {"prefixItems": [{"$ref": f"#/$defs/d{n - 1}"}] * 2} for n in range(1, 25)},
                    },
                }
            ),
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_costly_guide_is_refused_or_costs_little_for_each_token(pen: Pen, kind: GuideKind, guide: str) -> None:
    started = time.thread_time()
    try:
        matcher = pen.matcher(kind, guide)
        assert time.thread_time() - started < 5
        started = time.thread_time()
        scribble(pen, matcher, seed=1, longest=100)
    except RequestError as error:
        assert "too complex" in error.message or "too large" in error.message
    assert time.thread_time() - started < 5


# --- compiling for an engine


def test_a_guide_is_compiled_once_for_all_who_repeat_it(pen: Pen) -> None:
    guides = Guides(pen.folder, pen.size, frozenset({END}))
    first = guides.compile(Guide("regex", "ab"))
    assert guides.compile(Guide("regex", "ab")) is first and guides.compile(Guide("choice", '["ab"]')) is not first
    one, other = (first.result(30).matcher(frozenset({END})) for _ in range(2))
    one.accept(pen.piece("ab"))
    assert one.complete and not other.complete and pen.piece("ab") in pen.allowed(other)
    guides.close()


def test_compiled_guides_are_kept_up_to_a_size(pen: Pen) -> None:
    guides = Guides(pen.folder, pen.size, frozenset({END}))
    first = guides.compile(Guide("regex", "ab"))
    for number in range(100):
        last = guides.compile(Guide("regex", f"a{number}"))
    assert guides.compile(Guide("regex", "a99")) is last
    again = guides.compile(Guide("regex", "ab"))
    assert again is not first
    again.result(30), first.result(30)
    for letter in "cdefgh":
        guides.compile(Guide("json_schema", json.dumps({"const": letter * 120_000}))).result(30)
    assert guides.compile(Guide("regex", "ab")) is not again
    guides.close()


def test_a_guide_larger_than_all_that_are_kept_is_refused_like_any_other(pen: Pen) -> None:
    guides = Guides(pen.folder, pen.size, frozenset({END}))
    with pytest.raises(RequestError, match="has 1000000 bytes"):
        guides.compile(Guide("regex", "a" * 1_000_000)).result(30)
    guides.close()


def test_an_answer_that_exhausts_its_grammar_leaves_others_to_a_new_one(
    pen: Pen, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = LLParserLimits(max_lexer_states=500, verbose_errors=False)
    monkeypatch.setattr("conch.engine.guided._limits", lambda: small)
    guides = Guides(pen.folder, pen.size, frozenset({END}))
    guide = Guide("regex", ".*a.{20}")
    grammar = guides.compile(guide).result(30)
    with pytest.raises(RequestError, match="too complex"):
        for seed in range(100):
            scribble(pen, grammar.matcher(frozenset()), seed, longest=500)
    renewed = guides.compile(guide).result(30)
    assert renewed is not grammar and pen.allowed(renewed.matcher(frozenset()))
    guides.close()


def test_an_unknown_kind_of_tokenizer_is_refused_by_the_first_guide(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps({"version": "1.0", "decoder": None, "model": {"type": "none"}}))
    guides = Guides(tmp_path, 10, frozenset())
    assert isinstance(guides.compile(Guide("json")).exception(30), UnsupportedError)
    guides.close()
