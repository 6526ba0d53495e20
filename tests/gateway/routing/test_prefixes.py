"""Whose prefix cache has the start of a prompt: a guess from what was sent where."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from conch.gateway.routing.prefixes import BLOCK, Prefixes

TOKENS = st.lists(st.integers(0, 3), max_size=5 * BLOCK)


@given(st.lists(st.tuples(st.integers(0, 2), TOKENS), max_size=6), TOKENS)
def test_a_match_is_the_longest_common_start_in_whole_blocks(
    seen: list[tuple[int, list[int]]], prompt: list[int]
) -> None:
    prefixes = Prefixes(10_000)
    for server, tokens in seen:
        prefixes.saw(server, tokens)
    for server in range(3):
        longest = 0
        for _, tokens in (pair for pair in seen if pair[0] == server):
            common = 0
            while common < min(len(tokens), len(prompt)) and tokens[common] == prompt[common]:
                common += 1
            longest = max(longest, common // BLOCK * BLOCK)
        assert prefixes.matched(prompt).get(server, 0) == longest


def test_an_adapters_blocks_are_its_own() -> None:
    prefixes, prompt = Prefixes(100), list(range(BLOCK))
    prefixes.saw(0, prompt, salt=7)
    assert prefixes.matched(prompt, 7) == {0: BLOCK}
    assert prefixes.matched(prompt) == prefixes.matched(prompt, 8) == {}


def test_the_oldest_blocks_are_forgotten_first() -> None:
    prefixes = Prefixes(2)
    one, two, three = ([token] * BLOCK for token in (1, 2, 3))
    for prompt in (one, two, one, three):
        prefixes.saw(0, prompt)
    assert prefixes.matched(two) == {}
    assert prefixes.matched(one) == prefixes.matched(three) == {0: BLOCK}


def test_a_server_that_was_down_has_nothing() -> None:
    prefixes, prompt = Prefixes(100), list(range(3 * BLOCK))
    prefixes.saw(0, prompt)
    prefixes.saw(1, prompt[: 2 * BLOCK])
    prefixes.forget(0)
    assert prefixes.matched(prompt) == {1: 2 * BLOCK}
