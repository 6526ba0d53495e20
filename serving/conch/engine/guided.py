"""Guided decoding: what a guide allows next, for the requests that have one.

A guide is compiled by `llguidance` on threads of its own, once for all requests that repeat it; each request
then follows it with a matcher. What makes a guide costly is bounded: its size, the work of compiling it, of
each token's mask, and the memory both may take. Knows nothing of schedules or of how a token is chosen.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from conch.engine.guide import Guide, grammar_of, refusal
from conch_build.errors import UnsupportedError

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

_CACHED_GUIDES = 32
_CACHED_CHARACTERS = 1 << 19
"""Of the guides' texts; what is compiled from them takes up to some hundred times as much."""
_LONGEST_NUMBER = 32


def _limits() -> LLParserLimits:
    """A second of compiling, 10 ms a token and 30 MB at the very worst; a usual schema takes a hundredth of each."""
    from llguidance import LLParserLimits

    return LLParserLimits(
        initial_lexer_fuel=100_000, step_lexer_fuel=50_000, max_lexer_states=50_000, verbose_errors=False
    )


class Vocabulary:
    """The tokens as the library sees them."""

    def __init__(self, tokenizer_dir: Path, size: int, end_ids: frozenset[int]) -> None:
        from llguidance import LLTokenizer

        self.size = size
        self.end_ids = sorted(end_ids) or [0]
        try:
            described = _described(tokenizer_dir / "tokenizer.json")
            self.tokenizer: LLTokenizer = LLTokenizer(described, n_vocab=size, eos_token=self.end_ids)
        except Exception as error:
            raise UnsupportedError(
                f"this model's tokenizer cannot guide: {error}", param="guided_decoding_guide_type"
            ) from None
        self.special = _special_tokens(tokenizer_dir / "tokenizer.json")
        self.starts_with_digit = np.array([self.text(token)[:1].isdigit() for token in range(size)])

    def text(self, token: int) -> bytes:
        return self.tokenizer.decode_bytes([token])


def _described(path: Path) -> str:
    """A tokenizer, of whose decoders, as conversions leave them in a row, the one for bytes is the one that counts."""
    described = json.loads(path.read_text(encoding="utf-8"))
    if '"ByteLevel"' in json.dumps(described["decoder"]):
        plain = {"add_prefix_space": False, "trim_offsets": False, "use_regex": False}
        described["decoder"] = {"type": "ByteLevel", **plain}
    return json.dumps(described)


def _special_tokens(path: Path) -> dict[str, int]:
    """Those that the library takes for special, by their text: it tells them from the same text spelled out."""
    added = json.loads(path.read_text(encoding="utf-8"))["added_tokens"]
    return {
        token["content"]: token["id"]
        for token in added
        if token["special"] or (token["content"].startswith("<") and token["content"].endswith(">"))
    }


class Matcher:
    """One answer on its way through a guide. `end_ids` are those that end the answer."""

    __slots__ = ("_end_ids", "_grammar", "_matcher", "_numbers", "_vocabulary")

    def __init__(
        self, grammar: Grammar, matcher: LLMatcher, end_ids: frozenset[int], numbers: JsonNumbers | None
    ) -> None:
        self._grammar = grammar
        self._vocabulary = grammar.vocabulary
        self._matcher = matcher
        self._end_ids = end_ids
        self._numbers = numbers

    @property
    def complete(self) -> bool:
        """The answer satisfies the guide and nothing may follow it."""
        return self._matcher.is_accepting() and self._matcher.is_stopped()

    def allows(self, token: int) -> bool:
        """Whether `token` may come next: far quicker than `mask`, but False may also mean that only `mask` can tell."""
        if token in self._end_ids:
            return self._matcher.is_accepting()
        if token in self._vocabulary.end_ids or (self._numbers and self._numbers.full):
            return False
        return self._matcher.validate_tokens([token]) == 1

    def mask(self, logits: NDArray[np.float32]) -> None:
        """Forbid in `logits` [vocabulary], in place, what may not come next. RequestError if that is everything."""
        allowed = self._allowed()
        if self._numbers and self._numbers.full:
            without_digits = allowed & ~self._vocabulary.starts_with_digit
            allowed = without_digits if without_digits.any() else allowed
        if not allowed.any():
            self._grammar.spent = True
            raise refusal(self._matcher.get_error())
        np.copyto(logits, -np.inf, where=~allowed)

    def accept(self, token: int) -> None:
        """`token` was chosen; it is no end id. If the library gives up over it, the next `mask` says so."""
        self._matcher.consume_token(token)
        if self._numbers:
            self._numbers.add(self._vocabulary.text(token))

    def _allowed(self) -> NDArray[np.bool_]:
        """[vocabulary] what the grammar allows next: nothing when the library has given up."""
        size = self._vocabulary.size
        bits = np.zeros((size + 31) // 32, np.uint32)
        self._matcher.unsafe_compute_mask_ptr(bits.ctypes.data, bits.nbytes)
        allowed = np.unpackbits(bits.view(np.uint8), count=size, bitorder="little").view(np.bool_)
        works = not self._matcher.is_error()
        allowed &= works
        allowed[self._vocabulary.end_ids] = False
        allowed[list(self._end_ids)] = works and self._matcher.is_accepting()
        return allowed


class JsonNumbers:
    """How many digits in a row the number at the end of a JSON text has."""

    __slots__ = ("_digits", "_escaped", "_in_text")

    def __init__(self) -> None:
        self._digits = 0
        self._in_text = self._escaped = False

    @property
    def full(self) -> bool:
        """No more digits, if there is any other way on: the schema of a number alone would never end it."""
        return self._digits >= _LONGEST_NUMBER

    def add(self, text: bytes) -> None:
        for byte in text:
            if self._in_text and self._escaped:
                self._escaped = False
            elif self._in_text and byte == ord("\\"):
                self._escaped = True
            elif byte == ord('"'):
                self._in_text = not self._in_text
            self._digits = self._digits + 1 if ord("0") <= byte <= ord("9") and not self._in_text else 0


class Grammar:
    """A compiled guide, and the beginning of every answer that follows it."""

    def __init__(self, guide: Guide, vocabulary: Vocabulary) -> None:
        from llguidance import LLMatcher

        self.vocabulary = vocabulary
        self.spent = False
        """An answer has used up what the library may build for this grammar, which all its answers share."""
        self._matcher = LLMatcher(
            vocabulary.tokenizer, grammar_of(guide, vocabulary.special), log_level=0, limits=_limits()
        )
        self._is_json = guide.kind in ("json", "json_schema", "structural_tag")
        if self._matcher.is_error():
            raise refusal(self._matcher.get_error())
        # A guide that no answer satisfies shows at the first mask, and one too complex for it at the second.
        for _ in range(2):
            self.matcher(frozenset()).mask(np.zeros(vocabulary.size, np.float32))

    def matcher(self, end_ids: frozenset[int]) -> Matcher:
        return Matcher(self, self._matcher.deep_copy(), end_ids, JsonNumbers() if self._is_json else None)


class Guides:
    """Compiles the guides of one engine. Every method may be called from any thread."""

    def __init__(self, tokenizer_dir: Path, vocab_size: int, end_ids: frozenset[int]) -> None:
        self._description = (tokenizer_dir, vocab_size, end_ids)
        self._vocabulary: Vocabulary | None = None
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="conch-guides")
        self._lock = threading.Lock()
        self._known: OrderedDict[Guide, Future[Grammar]] = OrderedDict()

    def compile(self, guide: Guide) -> Future[Grammar]:
        """The guide's grammar, now or later; RequestError if the guide is wrong or too complex."""
        with self._lock:
            grammar = self._known.get(guide)
            if grammar is None or _is_spent(grammar):
                grammar = self._pool.submit(self._compile, guide)
            self._known[guide] = grammar
            self._known.move_to_end(guide)
            self._forget()
            return grammar

    def withdraw(self, guide: Guide, grammar: Future[Grammar]) -> None:
        """Nobody waits for this grammar any more: it is not compiled, unless that has begun."""
        with self._lock:
            if grammar.cancel() and self._known.get(guide) is grammar:
                del self._known[guide]

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _compile(self, guide: Guide) -> Grammar:
        # Loaded with the first guide: most engines never see one, and it takes longer than a start should.
        self._vocabulary = self._vocabulary or Vocabulary(*self._description)
        return Grammar(guide, self._vocabulary)

    def _forget(self) -> None:
        size = sum(len(guide.text) for guide in self._known)
        while len(self._known) > _CACHED_GUIDES or size > _CACHED_CHARACTERS:
            guide, _ = self._known.popitem(last=False)
            size -= len(guide.text)


def _is_spent(grammar: Future[Grammar]) -> bool:
    return grammar.done() and grammar.exception() is None and grammar.result().spent
