"""The pool of KV blocks: who holds which, and which still hold content worth reusing.

A block is held (one or more references), cached (no reference, content kept until the block is needed) or
free. Content is known by a digest that chains over every token before it: equal digests, equal prefixes.
Knows nothing of sequences or of the memory behind a block's number.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from hashlib import blake2b

Digest = bytes


def chain(parent: Digest, tokens: Sequence[int]) -> Digest:
    """Digest of a full block of `tokens` that follows the content of `parent`.

    The first block's parent is a salt: whatever else decides the keys and values (an adapter, say). The hash
    is a cryptographic one: a collision would show one caller's text to another.
    """
    return blake2b(array("q", tokens).tobytes(), key=parent, digest_size=32).digest()


class BlockPool:
    """`num_blocks` blocks, numbered from 0. Not thread-safe: the engine's thread owns it."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._references = [0] * num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._digest_of: dict[int, Digest] = {}
        self._block_of: dict[Digest, int] = {}

    @property
    def available(self) -> int:
        """Blocks that `take` can give."""
        return len(self._free) + len(self._cached)

    @property
    def cached(self) -> int:
        return len(self._cached)

    @property
    def used(self) -> int:
        return self.num_blocks - self.available

    def take(self, count: int) -> list[int]:
        """`count` blocks with no content and one reference each; free ones first, then the longest unused."""
        if count > self.available:
            raise RuntimeError(f"{count} KV blocks wanted, {self.available} available")
        return [self._take_one() for _ in range(count)]

    def match(self, digests: Iterable[Digest]) -> list[int]:
        """Take a reference to the blocks that hold the longest known prefix of `digests`."""
        blocks = []
        for digest in digests:
            block = self._block_of.get(digest)
            if block is None:
                break
            if self._references[block] == 0:
                del self._cached[block]
            self._references[block] += 1
            blocks.append(block)
        return blocks

    def hold(self, blocks: Iterable[int]) -> None:
        """Take another reference to blocks that are held."""
        for block in blocks:
            if self._references[block] == 0:
                raise RuntimeError(f"KV block {block} shared, but nobody holds it")
            self._references[block] += 1

    def publish(self, block: int, digest: Digest) -> None:
        """Say that a held block now has this content. The first block with a content is the one shared."""
        if self._references[block] == 0:
            raise RuntimeError(f"KV block {block} published, but nobody holds it")
        if digest not in self._block_of and block not in self._digest_of:
            self._block_of[digest] = block
            self._digest_of[block] = digest

    def release(self, blocks: Sequence[int]) -> None:
        """Give back one reference to each. The end of a prefix is forgotten before its beginning."""
        for block in reversed(blocks):
            if self._references[block] == 0:
                raise RuntimeError(f"KV block {block} released twice")
            self._references[block] -= 1
            if self._references[block] == 0:
                if block in self._digest_of:
                    self._cached[block] = None
                else:
                    self._free.append(block)

    def _take_one(self) -> int:
        if self._free:
            block = self._free.pop()
        else:
            block, _ = self._cached.popitem(last=False)
            del self._block_of[self._digest_of.pop(block)]
        self._references[block] = 1
        return block
