"""An EBNF grammar in the Lark dialect of `llguidance`, with the same meaning: every match, not the longest.

As much as possible becomes one regular expression (`lexemes` says what may be), the rest is matched character
by character, which is slower.
"""

from __future__ import annotations

from collections.abc import Mapping

from conch.engine.grammar.ebnf import Chars, Choice, Node, Repeat, Rule, Sequence, Word, nodes, parse_ebnf
from conch.engine.grammar.follow import Follow, callees_first
from conch.engine.grammar.lexemes import Alphabet, Comparison, Expression, TooLargeError

_MOST_CHARACTERS = 1 << 15
_MOST_RULES = 500
_MOST_ROUNDS = 50
_STEPS = 200_000


def to_lark(text: str) -> str:
    """The grammar for `LLMatcher.grammar_from_lark`. Raises ValueError for what is no grammar, or too large a one."""
    try:
        if len(text) > _MOST_CHARACTERS:
            raise ValueError(f"has {len(text)} characters; at most {_MOST_CHARACTERS} are compiled")
        rules = parse_ebnf(text)
        if len(rules) > _MOST_RULES:
            raise ValueError(f"has {len(rules)} rules; at most {_MOST_RULES} are compiled")
        cut = _Cutter(rules).cut()
        names = {name: f"r{index}" for index, name in enumerate(cut)} | {"root": "start"}
        return "\n".join(f"{names[name]}: {_lark(part, names, rules)}" for name, part in cut.items())
    except RecursionError:
        raise ValueError("is nested too deeply") from None


class _Cutter:
    """Cuts rules into the longest words that do not clash."""

    def __init__(self, rules: Mapping[str, Node]) -> None:
        self._rules = rules
        self._regular = _regular(rules)
        self._alphabet = Alphabet(node for rule in rules.values() for node in nodes(rule) if isinstance(node, Chars))
        self._expressions: dict[Node, Expression | None] = {}
        self._broken: set[Node] = set()
        self._by_character = False

    def cut(self) -> dict[str, Node]:
        comparison = Comparison(_STEPS)
        for _ in range(_MOST_ROUNDS):
            cut = self._cut_rules()
            try:
                clashing = self._clashing(cut, comparison)
            except TooLargeError:
                break
            if not clashing:
                return cut
            self._broken |= clashing
        self._by_character = True
        return self._cut_rules()

    def _cut_rules(self) -> dict[str, Node]:
        """The rules that are still needed: those within words are not."""
        cut = {name: self._cut(node) for name, node in self._rules.items()}
        return {name: cut[name] for name in callees_first(cut, "root")}

    def _cut(self, node: Node) -> Node:
        if expression := self._expression(node):
            if not expression.empty:
                return Word(node)
            if isinstance(node, Repeat) and node.least == 0 and node.most != 0:
                some = Repeat(node.part, 1, node.most)
                if (expression := self._expression(some)) and not expression.empty:
                    return Repeat(Word(some), 0, 1)
        match node:
            case Sequence(parts):
                return Sequence(tuple(self._cut(part) for part in parts))
            case Choice(parts):
                return Choice(tuple(self._cut(part) for part in parts))
            case Repeat(part, least, most):
                return Repeat(self._cut(part), least, most)
            case Chars():
                return Word(node)
        return node

    def _expression(self, node: Node) -> Expression | None:
        """The expression of a part that may be a word."""
        if self._by_character or node in self._broken:
            return None
        if node not in self._expressions:
            self._expressions[node] = None
            if all(each.name in self._regular for each in nodes(node) if isinstance(each, Rule)):
                try:
                    self._expressions[node] = Expression(node, self._rules, self._alphabet)
                except TooLargeError:
                    pass
        return self._expressions[node]

    def _clashing(self, cut: Mapping[str, Node], comparison: Comparison) -> set[Node]:
        after = Follow(cut, self._begins).after_word
        words = [(node, expression) for node in after if (expression := self._expression(node))]
        return {
            other
            for one, expression in words
            for other, longer in words
            if not isinstance(other, Chars) and comparison.clash(expression, after[one], longer)
        }

    def _begins(self, word: Node) -> int:
        expression = self._expression(word)
        return expression.begins() if expression else 0


def _regular(rules: Mapping[str, Node]) -> set[str]:
    """The rules that lead to no recursion."""
    regular: set[str] = set()
    for name in callees_first(rules, "root"):
        if all(each.name in regular for each in nodes(rules[name]) if isinstance(each, Rule)):
            regular.add(name)
    return regular


def _lark(part: Node, names: Mapping[str, str], rules: Mapping[str, Node]) -> str:
    match part:
        case Word(part):
            return f"/{_regex(part, rules)}/"
        case Rule(name):
            return names[name]
        case Sequence(parts):
            return " ".join(_lark(each, names, rules) for each in parts) or '""'
        case Choice(parts):
            return f"({' | '.join(_lark(each, names, rules) for each in parts)})"
        case Repeat(inner, least, most):
            return f"({_lark(inner, names, rules)}){_counts(least, most)}"
    raise AssertionError(part)


def _regex(node: Node, rules: Mapping[str, Node]) -> str:
    match node:
        case Chars(ranges):
            return f"[{''.join(map(_range, ranges))}]"
        case Rule(name):
            return _regex(rules[name], rules)
        case Sequence(parts):
            return "".join(_regex(each, rules) for each in parts)
        case Choice(parts):
            return f"(?:{'|'.join(_regex(each, rules) for each in parts)})"
        case Repeat(inner, least, most):
            return f"(?:{_regex(inner, rules)}){_counts(least, most)}"
    raise AssertionError(node)


def _range(ends: tuple[int, int]) -> str:
    return "-".join(f"\\x{{{code:X}}}" for code in dict.fromkeys(ends))


def _counts(least: int, most: int | None) -> str:
    return f"{{{least},{'' if most is None else most}}}"
