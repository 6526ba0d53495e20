"""What may follow each word of a grammar: one character further, whatever the way there. Knows only its tree."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from conch.engine.grammar.ebnf import Choice, Node, Repeat, Rule, Sequence, Word, nodes
from conch.engine.grammar.lexemes import TooLargeError, union

_MOST_PASSES = 20


class Follow:
    """`after_word`: the characters that may follow each word of a cut grammar, as bits."""

    def __init__(self, cut: Mapping[str, Node], begins: Callable[[Node], int]) -> None:
        self._begins = begins
        self._first = dict.fromkeys(cut, (0, False))
        self._after = dict.fromkeys(cut, 0)
        self.after_word: dict[Node, int] = {}
        order = callees_first(cut, "root")
        for _ in range(_MOST_PASSES):
            before = dict(self._first), dict(self._after)
            for name in order:
                self._first[name] = self._begin(cut[name])
            for name in reversed(order):
                self._walk(cut[name], self._after[name])
            if before == (self._first, self._after):
                return
        raise TooLargeError

    def _begin(self, part: Node) -> tuple[int, bool]:
        """The characters that a part may begin with, and whether it may be empty."""
        match part:
            case Word(part):
                return self._begins(part), False
            case Rule(name):
                return self._first[name]
            case Repeat(inner, least, _):
                bits, empty = self._begin(inner)
                return bits, empty or least == 0
            case Choice(parts):
                found = [self._begin(each) for each in parts]
                return union(bits for bits, _ in found), any(empty for _, empty in found)
            case Sequence(parts):
                whole = 0
                for each in parts:
                    bits, empty = self._begin(each)
                    whole |= bits
                    if not empty:
                        return whole, False
                return whole, True
        raise AssertionError(part)

    def _walk(self, part: Node, after: int) -> None:
        match part:
            case Word(part):
                self.after_word[part] = self.after_word.get(part, 0) | after
            case Rule(name):
                self._after[name] |= after
            case Repeat(inner, _, most):
                self._walk(inner, after if most == 1 else after | self._begin(inner)[0])
            case Choice(parts):
                for each in parts:
                    self._walk(each, after)
            case Sequence(parts):
                for each in reversed(parts):
                    self._walk(each, after)
                    bits, empty = self._begin(each)
                    after = bits | after if empty else bits


def callees_first(rules: Mapping[str, Node], root: str) -> list[str]:
    """The rules that `root` leads to, each after those that it calls, as far as they do not call it."""
    order: list[str] = []
    begun: set[str] = set()

    def visit(name: str) -> None:
        if name not in begun:
            begun.add(name)
            for each in nodes(rules[name]):
                if isinstance(each, Rule):
                    visit(each.name)
            order.append(name)

    visit(root)
    return order
