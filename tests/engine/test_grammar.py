"""EBNF grammars: read as upstream reads them, and matched by their meaning, not by the longest word."""

from __future__ import annotations

import itertools
import random

import pytest

from conch.engine.grammar import to_lark
from conch.engine.grammar.ebnf import Chars, Choice, Node, Repeat, Rule, Sequence, parse_ebnf
from conch_build.errors import RequestError
from tests.engine.tiny_vocabulary import Pen


@pytest.fixture(scope="module")
def pen(tmp_path_factory: pytest.TempPathFactory) -> Pen:
    return Pen(tmp_path_factory.mktemp("tokenizer"))


# --- meaning


def spelled(rules: dict[str, Node], text: str) -> bool:
    """Whether the rule `root` spells `text`, found by trying everything until nothing new comes out."""
    ends: dict[tuple[str, int], set[int]] = {(name, at): set() for name in rules for at in range(len(text) + 1)}

    def after(node: Node, start: int) -> set[int]:
        match node:
            case Chars(ranges):
                fits = start < len(text) and any(low <= ord(text[start]) <= high for low, high in ranges)
                return {start + 1} if fits else set()
            case Rule(name):
                return ends[name, start]
            case Choice(parts):
                return {end for part in parts for end in after(part, start)}
            case Sequence(parts):
                reached = {start}
                for part in parts:
                    reached = {end for at in reached for end in after(part, at)}
                return reached
            case Repeat(part, least, most):
                reached, found = {start}, {start} if least == 0 else set()
                for count in range(1, 1 + (most if most is not None else least + len(text) + 1)):
                    reached = {end for at in reached for end in after(part, at)}
                    found |= reached if count >= least else set()
                return found
        raise AssertionError(node)

    while True:
        known = sum(map(len, ends.values()))
        for name, start in ends:
            ends[name, start] |= after(rules[name], start)
        if known == sum(map(len, ends.values())):
            return len(text) in ends["root", 0]


def random_part(rng: random.Random, depth: int, names: list[str]) -> str:
    def inner() -> str:
        return random_part(rng, depth - 1, names)

    match rng.choice(["text", "text", "set", "row", "choice", "repeat", "rule"] if depth else ["text", "set", "rule"]):
        case "text":
            return '"' + "".join(rng.choice("ab") for _ in range(rng.choice([0, 1, 1, 2, 3]))) + '"'
        case "set":
            return rng.choice(["[ab]", "[a]", "[^a]", "[b-c]"])
        case "row":
            return f"({' '.join(inner() for _ in range(rng.randint(1, 3)))})"
        case "choice":
            return f"({' | '.join(inner() for _ in range(rng.randint(2, 3)))})"
        case "repeat":
            return f"({inner()}){rng.choice(['*', '+', '?', '{2}', '{1,2}', '{0,2}', '{1,}'])}"
    return rng.choice(names)


def random_grammar(seed: int) -> str:
    rng = random.Random(seed)
    names = ["root", "x", "y", "z"][: rng.randint(1, 4)]
    return "\n".join(f"{name} ::= {random_part(rng, 3, names)}" for name in names)


TEXTS = ["".join(letters) for length in range(1, 6) for letters in itertools.product("ab", repeat=length)]


@pytest.mark.parametrize("seed", range(60))
def test_a_random_grammar_takes_exactly_the_texts_that_it_spells(pen: Pen, seed: int) -> None:
    grammar = random_grammar(seed)
    rules = parse_ebnf(grammar)
    texts = [*TEXTS, "c", "ac", "ca", "bcc"]
    expected = [text for text in texts if spelled(rules, text)]
    try:
        found = [text for text in texts if pen.accepts("ebnf_grammar", grammar, text)]
    except RequestError as error:
        assert "no answer can satisfy it" in str(error)
        found = []
    assert found == expected, grammar


@pytest.mark.parametrize(
    ("grammar", "texts", "others"),
    [
        ('root ::= [a-z]+ "abc"', ["xabc", "abcabc"], ["abc", "xab"]),
        ('root ::= "a" "b" | "ab" "c"', ["ab", "abc"], ["a", "abcc"]),
        ('root ::= "yes" | "yes, please"', ["yes", "yes, please"], ["yes,"]),
        ('root ::= sum\nsum ::= sum "+" one | one\none ::= [0-9]+ | "(" sum ")"', ["1", "(1+23)+4"], ["1+", "(1"]),
        ('root ::= "é" | "\\u4e2d" | "\\x41" | "\\U0001F600"', ["é", "中", "A", "😀"], ["e", "\x41\x41"]),
        (r'root ::= "\"\\\n" [^\]\-a]', ['"\\\n]'[:3] + "b"], ['"\\\n]', '"\\\n-', '"\\\na']),
        ('root ::= ("x" | "y"){2,3}  # twice or more\n  "z"  # and an end', ["xyz", "yyyz"], ["xz", "xxxxz"]),
        ("root ::= | [0-9] root", ["7", "70"], ["a"]),
        ("root ::= a-b_c.d\na-b_c.d ::= [-a] [a-]", ["-a", "a-"], ["b"]),
    ],
)
def test_the_dialect(pen: Pen, grammar: str, texts: list[str], others: list[str]) -> None:
    assert [text for text in [*texts, *others] if pen.accepts("ebnf_grammar", grammar, text)] == texts


JSON = r"""
root ::= value
value ::= object | array | string | number | "true" | "false" | "null"
object ::= "{" ws (pair (ws "," ws pair)*)? ws "}"
pair ::= string ws ":" ws value
array ::= "[" ws (value (ws "," ws value)*)? ws "]"
string ::= "\"" char* "\""
char ::= [^"\\\x00-\x1f] | "\\" ["\\/bfnrt]
number ::= "-"? ("0" | [1-9] [0-9]*) ("." [0-9]+)?
ws ::= [ \n\t]*
"""


def test_what_cannot_be_misread_is_matched_as_a_whole(pen: Pen) -> None:
    lark = to_lark(JSON)
    assert r"/[\x{22}](?:" in lark, "strings"
    assert r"(/[\x{9}-\x{A}\x{20}]/){0,}" in lark, "blanks may be followed by blanks: one by one"
    for text in ('{"a": [1, 2.50, {"b c": "x\\n é"}], "d": null}', "[ ]", "-0.1"):
        assert pen.accepts("ebnf_grammar", JSON, text)
    for text in ("01", '{"a" 1}', '"\n"', "[1,]"):
        assert not pen.accepts("ebnf_grammar", JSON, text)


# --- what is refused


@pytest.mark.parametrize(
    ("grammar", "words"),
    [
        ("", "no rule `root`"),
        ('start ::= "a"', "no rule `root`"),
        ("root", "line 1: 'root' is out of place"),
        ('root ::= "a"\nother ::= missing', "line 2: rule `missing` is not defined"),
        ('root ::= "a"\nroot ::= "b"', "line 2: rule `root` is defined twice"),
        ('root ::= "a', "line 1: cannot read"),
        ('root ::= ("a"', "line 1: `(` is never closed"),
        ('root ::= "a")', "line 1: ')' is out of place"),
        ('root ::= "a"**', "line 1: '*' is out of place"),
        ("root ::= [z-a]", "the range z-a is empty"),
        ("root ::= []", "no characters"),
        (r'root ::= "\q"', r"the escape \q has no meaning"),
        (r'root ::= "\ud800"', "no character"),
        ('root ::= "a"{3,1}', "{3,1}"),
        ('root ::= "a" (= "b")', "cannot read '= \"b\")'"),
        (f"root ::= {'(' * 300}{')' * 300}", "brackets"),
        ("\n".join(f'r{n} ::= "a"' for n in range(600)) + "\nroot ::= r1", "601 rules"),
        ('root ::= "' + "a" * 40_000 + '"', "characters"),
    ],
)
def test_what_is_no_grammar_is_refused_with_words(pen: Pen, grammar: str, words: str) -> None:
    with pytest.raises(RequestError) as refused:
        pen.matcher("ebnf_grammar", grammar)
    assert words in refused.value.message and refused.value.param == "guided_decoding_guide"


@pytest.mark.parametrize(
    "grammar",
    [
        "\n".join(
            ["root ::= r0", *(f'r{n} ::= "x" r{n + 1} "y" | r{n + 1}' for n in range(490)), 'r490 ::= root | "z"']
        ),
        "root ::= r30 root | r30\n" + "\n".join(f"r{n} ::= r{n - 1} r{n - 1}" for n in range(1, 31)) + '\nr0 ::= "a"',
        'root ::= ("a"{1000}){1000} root | "b"',
        'root ::= "a"{1000000000} root | "b"',
        "root ::= (x root)?\nx ::= " + " | ".join(f'([a-z]* "{"ab" * (n % 40)}")*' for n in range(300)),
    ],
    ids=["chain", "doubling", "repeats", "huge repeat", "stars"],
)
def test_a_costly_grammar_is_refused_or_compiled_in_bounded_time(pen: Pen, grammar: str) -> None:
    import time

    started = time.thread_time()
    try:
        pen.allowed(pen.matcher("ebnf_grammar", grammar))
    except RequestError as error:
        assert "too complex" in error.message
    assert time.thread_time() - started < 5
