"""Token ids to text, piece by piece: the pieces of a stream join to the whole text, character by character.

A piece never ends inside a character: ids that may still be completed are held back. What is held depends
only on the last ids, so the work needs no memory beyond a short window of them. Needs the `tokenizer.json`
kind of tokenizer; knows nothing of prompts, stop strings or who listens.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

WINDOW = 32
"""Ids before a piece that its text can depend on."""
_HELD = 8  # ids held back at most; a character is spread over four at most, so more are broken text for good
_CHARACTER = 4
_CONTEXT = 12  # settled ids that a stream keeps; with more, those before the last piece are forgotten
_BROKEN = "\N{REPLACEMENT CHARACTER}"


class IdDecoder:
    """The two things needed of a tokenizer: which ids are special, and the text of the others, untouched."""

    def __init__(self, tokenizer: Any, *, skip_special_tokens: bool = True, kept: Collection[str] = ()) -> None:
        """Takes a `tokenizers.Tokenizer` or a fast tokenizer of transformers. `kept`: special tokens to show."""
        backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
        added = backend.get_added_tokens_decoder() if skip_special_tokens else {}
        self._skipped = frozenset(
            token for token, entry in added.items() if entry.special and entry.content not in kept
        )
        self._decode = backend.decode

    @classmethod
    def load(cls, folder: str | Path, *, skip_special_tokens: bool = True) -> IdDecoder:
        """From the folder that holds `tokenizer.json`."""
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
        return cls(tokenizer, skip_special_tokens=skip_special_tokens)

    def shown(self, ids: Sequence[int]) -> list[int]:
        """The ids that have a text."""
        return [token for token in ids if token not in self._skipped]

    def text(self, ids: Sequence[int]) -> str:
        """The whole text of ids, with no spaces cleaned up."""
        text: str = self._decode(self.shown(ids), skip_special_tokens=False)
        return text


def stable_text(previous_ids: Sequence[int], ids: Sequence[int], decoder: IdDecoder, *, last: bool = False) -> str:
    """The text that `ids` settle after `previous_ids` (the last WINDOW of them are enough).

    `last` releases what is held back. Over a stream, the results join to `decoder.text(all ids)`.
    """
    before = decoder.shown(previous_ids)
    window = before + decoder.shown(ids)
    start = _settled(before, decoder)
    end = len(window) if last else _settled(window, decoder)
    if end <= start:
        return ""
    # Decoded from a whole character earlier: some tokenizers drop the space in front of the first token.
    context = _settled(window[: max(0, start - 1)], decoder)
    return decoder.text(window[context:end])[len(decoder.text(window[context:start])) :]


class Detokenizer:
    """The text of one stream of ids; it keeps a few of them, so that an id costs two short decodings."""

    def __init__(self, tokenizer: Any, *, skip_special_tokens: bool = True) -> None:
        self._decoder = (
            tokenizer
            if isinstance(tokenizer, IdDecoder)
            else IdDecoder(tokenizer, skip_special_tokens=skip_special_tokens)
        )
        self._ids: list[int] = []
        self._settled = 0  # of `_ids`
        self._given = 0  # characters that the settled ids have

    def push(self, ids: Sequence[int]) -> str:
        """The text that these ids settle; may be empty."""
        self._ids += self._decoder.shown(ids)
        return self._give(_settled(self._ids, self._decoder))

    def flush(self) -> str:
        """What was held back, at the end of the stream."""
        return self._give(len(self._ids))

    def _give(self, end: int) -> str:
        if end <= self._settled:
            return ""
        text = self._decoder.text(self._ids[:end])
        piece = text[self._given :]
        if self._settled > _CONTEXT:
            del self._ids[: self._settled]
            end -= self._settled
            text = self._decoder.text(self._ids[:end])
        self._settled, self._given = end, len(text)
        return piece


def _settled(ids: Sequence[int], decoder: IdDecoder) -> int:
    """How many of the ids have a text that no later id can change."""
    for held in range(min(_HELD, len(ids))):
        if _ends_whole(ids[: len(ids) - held], decoder):
            return len(ids) - held
    return max(0, len(ids) - _HELD)


def _ends_whole(ids: Sequence[int], decoder: IdDecoder) -> bool:
    """Whether the last character is complete: some of the last few ids, on their own, end in whole text."""
    return any(not decoder.text(ids[-count:]).endswith(_BROKEN) for count in range(1, min(_CHARACTER, len(ids)) + 1))
