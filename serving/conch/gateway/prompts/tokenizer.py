"""Text to tokens and back, with the artifact's own tokenizer. Knows nothing of requests.

Loaded through transformers, which reads every kind of tokenizer folder; encoding calls the Rust tokenizer
inside it, which lets other threads run.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from conch.gateway.prompts.dialect import Dialect
from conch.text import IdDecoder
from conch_build.errors import SetupError


class Tokenizer:
    """`hf` is the tokenizer of transformers, `dialect` what its chat template says of the model.

    The exact ways back to text: `decoder` leaves special tokens out, `marking_decoder` all but those that mark calls
    and reasoning, `whole_decoder` none.
    """

    def __init__(self, folder: Path, tool_format: str = "auto") -> None:
        self.hf = _load(folder)
        self.dialect = Dialect.of(self.hf.chat_template, tool_format)
        self.decoder = IdDecoder(self.hf)
        self.marking_decoder = IdDecoder(self.hf, kept=self.dialect.markers)
        self.whole_decoder = IdDecoder(self.hf, skip_special_tokens=False)
        self._rust = self.hf.backend_tokenizer
        self._added = {token: entry.content for token, entry in self._rust.get_added_tokens_decoder().items()}
        self._is_byte_level = "ByteLevel" in repr(self._rust.decoder)
        self.token_bytes = lru_cache(maxsize=None)(self._token_bytes)

    def encode(self, text: str, *, special: bool) -> list[int]:
        """Ids of a text; `special` adds what the tokenizer itself puts around a text (a start token, say)."""
        ids: list[int] = self._rust.encode(text, add_special_tokens=special).ids
        return ids

    def words(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids that stand for each text, at the start and after a space."""
        forms = (f"{before}{text.lstrip()}" for text in texts for before in ("", " "))
        spelled = dict.fromkeys(tuple(self.encode(form, special=False)) for form in forms)
        return [list(ids) for ids in spelled if ids]

    def _token_bytes(self, token: int) -> bytes:
        """The bytes that a token stands for; they need not be whole characters."""
        if token in self._added:
            return str(self._added[token]).encode()
        piece = self._rust.id_to_token(token)
        if piece is None:
            return b""
        if self._is_byte_level:
            table = _byte_level_table()
            return bytes(table[character] for character in piece)
        if len(piece) == 6 and piece.startswith("<0x"):
            return bytes([int(piece[3:5], 16)])
        return str(piece).replace("▁", " ").encode()


@lru_cache(maxsize=1)
def _byte_level_table() -> dict[str, int]:
    """Character -> byte of byte-level BPE: printable bytes stand for themselves, others are moved up."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + i): byte for i, byte in enumerate(moved)}


def _load(folder: Path) -> Any:
    if not folder.is_dir():
        raise SetupError("no tokenizer folder", where=str(folder), fix="Run `conch build` again.")
    try:
        tokenizer = _without_torch().from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:
        raise SetupError(f"the tokenizer does not load: {error}", where=str(folder)) from None
    if not tokenizer.is_fast:
        raise SetupError("the tokenizer has no tokenizer.json", where=str(folder), fix="Convert it to a fast one.")
    return tokenizer


def _without_torch() -> Any:
    """`AutoTokenizer` of a transformers that does not import torch: seconds, and hundreds of megabytes."""
    asked = {"USE_TORCH": "0", "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1"}
    added = asked.keys() - os.environ.keys()
    os.environ.update({name: asked[name] for name in added})
    try:
        from transformers import AutoTokenizer
    finally:
        for name in added:  # what this process starts may need torch
            del os.environ[name]
    return AutoTokenizer
