"""Incremental detokenization: the pieces join to the whole text and none holds half a character."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conch.text import WINDOW, Detokenizer, IdDecoder, stable_text
from tests.build.tiny import write_tokenizer

BROKEN = "\N{REPLACEMENT CHARACTER}"
TEXTS = st.text(st.sampled_from("ab ,.'\n é깰中文❤️😀👩‍👧 \u0301") | st.characters(codec="utf-8"), max_size=60)
quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def byte_level(folder: Path) -> Any:
    """As Llama 3, Qwen and SmolLM have it."""
    from tokenizers import Tokenizer

    write_tokenizer(folder)
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def byte_fallback(folder: Path) -> Any:
    """As Llama 2 and Mistral have it: words start with a mark, unknown characters are spelt in bytes."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

    pieces = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "▁",
        *"abcdeé,.'",
        "▁a",
        "▁b",
    ]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    model = models.BPE(vocabulary, [("▁", "a"), ("▁", "b")], unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in pieces[:3]])
    return tokenizer


@pytest.fixture(scope="module", params=[byte_level, byte_fallback], ids=["byte-level", "byte-fallback"])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return request.param(tmp_path_factory.mktemp("tokenizer"))


def ids_of(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False).ids)


def streamed(tokenizer: Any, ids: list[int], sizes: list[int]) -> list[str]:
    detokenizer = Detokenizer(tokenizer)
    pieces, start = [], 0
    for size in [*sizes, *[1] * len(ids)]:
        pieces.append(detokenizer.push(ids[start : start + size]))
        start += size
    return [*pieces, detokenizer.flush()]


@quick
@given(text=TEXTS, sizes=st.lists(st.integers(0, 40), max_size=10))
def test_pieces_join_to_the_whole_text(tokenizer: Any, text: str, sizes: list[int]) -> None:
    ids = ids_of(tokenizer, text)
    pieces = streamed(tokenizer, ids, sizes)
    assert "".join(pieces) == IdDecoder(tokenizer).text(ids)
    if BROKEN not in text:
        assert not any(BROKEN in piece for piece in pieces)


@quick
@given(data=st.data())
def test_any_ids_at_all_join_to_the_whole_text_of_a_byte_level_tokenizer(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    tokenizer = byte_level(tmp_path_factory.mktemp("tokenizer"))
    ids = data.draw(st.lists(st.integers(0, tokenizer.get_vocab_size() - 1), max_size=100))
    assert "".join(streamed(tokenizer, ids, [])) == IdDecoder(tokenizer).text(ids)


@quick
@given(text=TEXTS, cut=st.integers(0, 60))
def test_a_piece_depends_on_a_short_window_only(tokenizer: Any, text: str, cut: int) -> None:
    decoder = IdDecoder(tokenizer)
    ids = ids_of(tokenizer, "a b é 😀 " * 20 + text)
    cut = min(len(ids), max(0, len(ids) - cut))
    whole = stable_text(ids[:cut], ids[cut:], decoder, last=True)
    assert stable_text(ids[:cut][-WINDOW:], ids[cut:], decoder, last=True) == whole


def test_half_a_character_is_held_until_the_rest_comes(tokenizer: Any) -> None:
    ids = ids_of(tokenizer, "a😀")
    detokenizer = Detokenizer(tokenizer)
    pieces = [detokenizer.push([token]) for token in ids]
    assert pieces[-1] == "😀"
    assert "".join(pieces[:-1]) == "a"
    assert detokenizer.flush() == ""


def test_half_a_character_at_the_end_is_flushed(tokenizer: Any) -> None:
    ids = ids_of(tokenizer, "a😀")[:-1]
    detokenizer = Detokenizer(tokenizer)
    assert "".join(detokenizer.push([token]) for token in ids) == "a"
    assert set(detokenizer.flush()) == {BROKEN}


def test_text_broken_for_good_still_flows(tokenizer: Any) -> None:
    half = ids_of(tokenizer, "😀")[-2]
    ids = [half] * 200
    pieces = streamed(tokenizer, ids, [])
    assert "".join(pieces) == IdDecoder(tokenizer).text(ids)
    assert len(pieces[-1]) < WINDOW


def test_spaces_are_kept(tokenizer: Any) -> None:
    text = "a b  b , a 'a b ."
    assert "".join(streamed(tokenizer, ids_of(tokenizer, text), [])) == text


def test_special_tokens_have_no_text_and_do_not_split_characters(tokenizer: Any) -> None:
    ids = ids_of(tokenizer, "é😀")
    mixed = [token for pair in zip(ids, [1] * len(ids), strict=True) for token in pair]
    assert "".join(streamed(tokenizer, mixed, [])) == IdDecoder(tokenizer).text(ids)
    assert "<" in Detokenizer(tokenizer, skip_special_tokens=False).push([1])
