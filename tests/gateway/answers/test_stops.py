"""Stop strings: no character of one is sent, nothing is held back that cannot become one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from conch.gateway.answers.stops import StopMatcher

# A small alphabet, so that stop strings and their beginnings come up often.
TEXTS = st.text("ab#", max_size=40)
STOPS = st.lists(st.text("ab#", min_size=1, max_size=5), min_size=1, max_size=4)


def run(pieces: list[str], stops: list[str]) -> tuple[list[str], str | None]:
    matcher = StopMatcher(stops)
    sent = [matcher.push(piece) for piece in pieces]
    if matcher.matched is None:
        sent.append(matcher.flush())
    return sent, matcher.matched


def expected(text: str, stops: list[str]) -> tuple[str, str | None]:
    """Read character by character: the first moment at which a stop string is complete ends the text."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            stop = max(complete, key=len)
            return text[: end - len(stop)], stop
    return text, None


@given(st.lists(TEXTS, max_size=12), STOPS)
def test_the_result_does_not_depend_on_how_the_text_is_split(pieces: list[str], stops: list[str]) -> None:
    sent, matched = run(pieces, stops)
    assert ("".join(sent), matched) == expected("".join(pieces), stops)


@given(st.lists(TEXTS, max_size=12), STOPS)
def test_only_text_that_may_still_become_a_stop_is_held_back(pieces: list[str], stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    given_text = sent = ""
    for piece in pieces:
        given_text += piece
        sent += matcher.push(piece)
        if matcher.matched is not None:
            break
        held = given_text[len(sent) :]
        assert not held or any(stop.startswith(held) and stop != held for stop in stops)


def test_a_stop_spread_over_many_pieces_is_found() -> None:
    sent, matched = run(list("say STOP now"), ["STOP"])
    assert ("".join(sent), matched) == ("say ", "STOP")


def test_the_beginning_of_a_stop_that_never_completes_arrives() -> None:
    sent, matched = run(["12, 1", "3", "#"], ["13$", "#!"])
    assert ("".join(sent), matched) == ("12, 13#", None)


def test_nothing_follows_a_match() -> None:
    matcher = StopMatcher(["x"])
    assert matcher.push("ax") == "a"
    assert matcher.push("bc") == ""
