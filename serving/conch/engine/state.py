"""The state of an unfinished answer, to be finished by another engine: its tokens and the blocks behind them.

As bytes it is a frame: a magic word, the length of a JSON header, the header, the arrays one after another, and a
digest over all of that. Nothing in it is code. Knows nothing of how frames travel.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conch.engine.batch import Runner
from conch_build.errors import RequestError

_MAGIC = b"CONCHKV1"
_DIGEST_BYTES = 32
_MAX_HEADER_BYTES = 1 << 24


@dataclass(frozen=True, eq=False)
class KvState:
    """`computed` of the tokens of prompt and answer have their keys and values in `blocks`."""

    layout: str
    """Which engines can go on with it: `Runner.layout` of the one that made it."""
    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    computed: int
    blocks: Sequence[NDArray[Any]]
    """For each cache the content of the blocks in their order, as `Runner.read_blocks` gives it."""

    def to_bytes(self) -> bytes:
        header = {
            "layout": self.layout,
            "prompt": self.prompt,
            "answer": self.answer,
            "computed": self.computed,
            "arrays": [{"dtype": array.dtype.str, "shape": array.shape} for array in self.blocks],
        }
        encoded = json.dumps(header).encode()
        body = b"".join(
            [_MAGIC, len(encoded).to_bytes(8, "little"), encoded, *(array.tobytes() for array in self.blocks)]
        )
        return body + blake2b(body, digest_size=_DIGEST_BYTES).digest()

    @classmethod
    def from_bytes(cls, frame: bytes) -> KvState:
        """Raises RequestError for a frame that is not whole: nothing of it is used then."""
        body, digest = frame[:-_DIGEST_BYTES], frame[-_DIGEST_BYTES:]
        start = len(_MAGIC) + 8
        if not body.startswith(_MAGIC) or len(body) < start:
            raise _unusable("is not a KV state")
        if blake2b(body, digest_size=_DIGEST_BYTES).digest() != digest:
            raise _unusable("was damaged on its way: its digest differs")
        size = int.from_bytes(body[len(_MAGIC) : start], "little")
        if size > min(_MAX_HEADER_BYTES, len(body) - start):
            raise _unusable("has a header longer than itself")
        try:
            header = json.loads(body[start : start + size])
            arrays, at = [], start + size
            for entry in header["arrays"]:
                dtype, shape = np.dtype(entry["dtype"]), tuple(entry["shape"])
                count = int(np.prod(shape, dtype=np.int64))
                arrays.append(np.frombuffer(body, dtype, count, at).reshape(shape))
                at += count * dtype.itemsize
            prompt, answer = (tuple(int(token) for token in header[name]) for name in ("prompt", "answer"))
            return cls(str(header["layout"]), prompt, answer, int(header["computed"]), arrays)
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise _unusable(f"does not read: {error}") from None


def check_state(state: KvState, prompt: Sequence[int], max_tokens: int, runner: Runner) -> None:
    """Raise RequestError unless an engine over `runner` can go on with `state` for this request."""
    if state.layout != runner.layout:
        raise _unusable("comes from an engine of another model, quantization or KV type")
    if state.prompt != tuple(prompt):
        raise _unusable("belongs to another prompt")
    if not all(0 <= token < runner.vocab_size for token in state.answer):
        raise _unusable("has tokens that are not in the vocabulary")
    if not len(state.answer) < max_tokens:
        raise _unusable(f"has {len(state.answer)} tokens of the answer already, max_tokens is {max_tokens}")
    size = len(state.prompt) + len(state.answer)
    if not (0 < state.computed < size):
        raise _unusable(f"says that {state.computed} of {size} tokens are computed")
    needed = -(-state.computed // runner.tokens_per_block)
    if not runner.fits(state.blocks, needed):
        raise _unusable(f"does not hold the {needed} blocks of {state.computed} tokens as this engine has them")


def _unusable(why: str) -> RequestError:
    return RequestError(f"the KV state {why}", param="state", code="invalid_value", fix="Send the prompt without it.")
