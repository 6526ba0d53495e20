"""A byte-level tokenizer of some three hundred tokens, and texts written with it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from conch.engine.guide import Guide, GuideKind
from conch.engine.guided import Grammar, Matcher, Vocabulary

END = 0
PIECES = ["ab", "abc", "bc", '{"', '":', '",', "12", "  ", "yes", "\n\n", "0000"]


class Pen:
    """Writes texts with matchers, a byte at a time unless told otherwise."""

    def __init__(self, folder: Path) -> None:
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        pieces = ["".join(part for part, _ in byte_level.pre_tokenize_str(piece)) for piece in PIECES]
        texts = ["<end>", *sorted(pre_tokenizers.ByteLevel.alphabet()), *pieces]
        self._tokenizer = Tokenizer(models.BPE({text: index for index, text in enumerate(texts)}, []))
        self._tokenizer.pre_tokenizer = byte_level
        self._tokenizer.decoder = decoders.ByteLevel()
        self._tokenizer.add_special_tokens([AddedToken("<end>", special=True)])
        self._tokenizer.save(str(folder / "tokenizer.json"))
        self.folder = folder
        self.size = len(texts)
        self.vocabulary = Vocabulary(folder, self.size, frozenset({END}))

    def ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text).ids
        return ids

    def piece(self, text: str) -> int:
        return self.size - len(PIECES) + PIECES.index(text)

    def text(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(ids)
        return text

    def matcher(self, kind: GuideKind, text: str = "", end_ids: frozenset[int] = frozenset({END})) -> Matcher:
        return Grammar(Guide(kind, text), self.vocabulary).matcher(end_ids)

    def allowed(self, matcher: Matcher) -> set[int]:
        row = np.zeros(self.size, np.float32)
        matcher.mask(row)
        return set(np.flatnonzero(row == 0).tolist())

    def write(self, matcher: Matcher, text: str) -> str:
        """Write as much of `text` as the matcher takes; returns what it took."""
        for written, token in enumerate(ids := self.ids(text)):
            if not matcher.allows(token) and token not in self.allowed(matcher):
                return self.text(ids[:written])
            matcher.accept(token)
        return text

    def accepts(self, kind: GuideKind, guide: str, text: str) -> bool:
        """Whether `text`, and then the end, is an answer that the guide allows."""
        matcher = self.matcher(kind, guide)
        return self.write(matcher, text) == text and matcher.allows(END)
