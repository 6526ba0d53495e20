"""Which parts of a grammar may be matched as a whole, by one regular expression each.

A lexer takes the longest match, a grammar means every match. The two are the same as long as no word of one
expression, with a character that may follow it, begins a longer word of another. Knows only trees of `ebnf`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from conch.engine.grammar.ebnf import Chars, Choice, Node, Repeat, Rule, Sequence, Word

MOST_POSITIONS = 400
"""Characters in an expression; a longer one is not worth its cost."""


_Ends = tuple[bool, set[int], set[int]]


class TooLargeError(Exception):
    """An expression has more positions, or a comparison more steps, than is sensible."""


class Alphabet:
    """Sets of characters as bits: one for each range that no expression of the grammar tells apart."""

    def __init__(self, sets: Iterable[Chars]) -> None:
        cuts = {0, 0x110000}
        for chars in sets:
            for low, high in chars.ranges:
                cuts |= {low, high + 1}
        edges = sorted(cuts)
        self._bit = {low: 1 << index for index, low in enumerate(edges)}
        self._edges = edges
        self._known: dict[Chars, int] = {}

    def bits(self, chars: Chars) -> int:
        if chars not in self._known:
            ends = [(self._bit[low], self._bit[high + 1]) for low, high in chars.ranges]
            self._known[chars] = sum(end - start for start, end in ends)
        return self._known[chars]


class Expression:
    """A regular part of a grammar, other rules put in their places: its characters, and what may follow each.

    This is Glushkov's automaton; `chars` are the sets at its positions, as bits.
    """

    def __init__(self, node: Node, rules: Mapping[str, Node], alphabet: Alphabet) -> None:
        self.chars: list[int] = []
        self.follow: list[set[int]] = []
        self._rules = rules
        self._alphabet = alphabet
        self.empty, self.first, self.last = self._add(node)
        """Whether nothing is a word of it, and the positions where its words begin and end."""

    def begins(self) -> int:
        """The characters that a word may begin with."""
        return union(self.chars[position] for position in self.first)

    def _add(self, node: Node) -> _Ends:
        match node:
            case Chars():
                if len(self.chars) == MOST_POSITIONS:
                    raise TooLargeError
                self.chars.append(self._alphabet.bits(node))
                self.follow.append(set())
                here = {len(self.chars) - 1}
                return False, here, here
            case Rule(name):
                return self._add(self._rules[name])
            case Choice(parts):
                added = [self._add(part) for part in parts]
                return (
                    any(a[0] for a in added),
                    set().union(*(a[1] for a in added)),
                    set().union(*(a[2] for a in added)),
                )
            case Sequence(parts):
                whole: _Ends = True, set(), set()
                for part in parts:
                    whole = self._join(whole, self._add(part))
                return whole
            case Repeat(part, least, most):
                return self._repeat(part, least, most)
            case Word(part):
                return self._add(part)

    def _join(self, one: _Ends, two: _Ends) -> _Ends:
        for position in one[2]:
            self.follow[position] |= two[1]
        return one[0] and two[0], one[1] | two[1] if one[0] else one[1], one[2] | two[2] if two[0] else two[2]

    def _repeat(self, part: Node, least: int, most: int | None) -> _Ends:
        whole: _Ends = True, set(), set()
        for count in range(max(least, 1) if most is None else most):
            _, first, last = added = self._add(part)
            if not first:
                break
            if most is None and count >= least - 1:
                for position in last:
                    self.follow[position] |= first
            whole = self._join(whole, (added[0] or count >= least, first, last))
        return whole


class Comparison:
    """Finds the expressions of a grammar that the longest match would get wrong. `steps` bounds the work."""

    def __init__(self, steps: int) -> None:
        self._steps = steps

    def clash(self, one: Expression, after_one: int, other: Expression) -> bool:
        """Whether a word of `one` and a character of `after_one` begin a word of `other`."""
        if not one.begins() & other.begins():
            return False
        open_pairs = [(p, q) for p in one.first for q in other.first if one.chars[p] & other.chars[q]]
        seen = set(open_pairs)
        while open_pairs:
            self._steps -= 1
            if self._steps < 0:
                raise TooLargeError
            p, q = open_pairs.pop()
            if p in one.last and union(other.chars[next_q] for next_q in other.follow[q]) & after_one:
                return True
            for next_p in one.follow[p]:
                for next_q in other.follow[q]:
                    if one.chars[next_p] & other.chars[next_q] and (next_p, next_q) not in seen:
                        seen.add((next_p, next_q))
                        open_pairs.append((next_p, next_q))
        return False


def union(sets: Iterable[int]) -> int:
    bits = 0
    for each in sets:
        bits |= each
    return bits
