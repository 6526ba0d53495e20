"""The block pool, held to a plain model of it through any sequence of operations."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from conch.engine.blocks import BlockPool, chain

BLOCKS = 6


def prefix(*tokens: int) -> list[bytes]:
    """Digests of blocks of one token each."""
    digests: list[bytes] = []
    for token in tokens:
        digests.append(chain(digests[-1] if digests else b"", [token]))
    return digests


def test_blocks_without_content_are_free_again_once_released() -> None:
    pool = BlockPool(4)
    blocks = pool.take(3)
    assert (pool.used, pool.available, pool.cached) == (3, 1, 0)
    pool.release(blocks)
    assert (pool.used, pool.available, pool.cached) == (0, 4, 0)


def test_a_released_block_with_content_can_be_found_until_it_is_taken() -> None:
    pool = BlockPool(2)
    blocks = pool.take(2)
    digests = prefix(1, 2)
    for block, digest in zip(blocks, digests, strict=True):
        pool.publish(block, digest)
    pool.release(blocks)
    assert pool.cached == 2
    assert pool.match(digests) == blocks
    pool.release(blocks)
    pool.take(1)
    assert pool.match(digests) == blocks[:1], "the end of a prefix goes first"


def test_the_prefix_unused_for_longest_is_forgotten_first() -> None:
    pool = BlockPool(2)
    for token in (1, 2):
        [block] = pool.take(1)
        pool.publish(block, *prefix(token))
        pool.release([block])
    pool.release(pool.match(prefix(1)))
    pool.take(1)
    assert pool.match(prefix(1)) and not pool.match(prefix(2))


def test_a_shared_block_is_held_until_its_last_holder_releases_it() -> None:
    pool = BlockPool(1)
    [block] = pool.take(1)
    pool.publish(block, *prefix(5))
    assert pool.match(prefix(5)) == [block]
    pool.release([block])
    assert pool.used == 1
    pool.release([block])
    assert pool.used == 0


def test_releasing_twice_or_taking_too_many_is_an_internal_error() -> None:
    pool = BlockPool(2)
    blocks = pool.take(1)
    pool.release(blocks)
    with pytest.raises(RuntimeError, match="twice"):
        pool.release(blocks)
    with pytest.raises(RuntimeError, match="3 KV blocks wanted, 2 available"):
        pool.take(3)
    with pytest.raises(RuntimeError, match="nobody holds it"):
        pool.publish(blocks[0], b"x")


def test_a_digest_depends_on_everything_before_it_and_on_the_salt() -> None:
    assert prefix(1, 2)[1] != prefix(3, 2)[1]
    assert chain(b"", [1, 2]) != chain(b"adapter", [1, 2])
    assert chain(b"", [1, 2]) == chain(b"", [1, 2])


class Pool(RuleBasedStateMachine):
    """`held` are references that somebody has; `content` is what each published block holds."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(BLOCKS)
        self.held: list[list[int]] = []
        self.content: dict[int, bytes] = {}

    @rule(count=st.integers(1, 3))
    def take(self, count: int) -> None:
        if count > self.pool.available:
            return
        blocks = self.pool.take(count)
        assert not {block for group in self.held for block in group} & set(blocks), "taken from its holder"
        for block in blocks:
            self.content.pop(block, None)
        self.held.append(blocks)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), token=st.integers(0, 3))
    def publish(self, data: st.DataObject, token: int) -> None:
        group = data.draw(st.sampled_from(self.held))
        digest = prefix(token)[0]
        self.pool.publish(group[0], digest)
        if group[0] not in self.content and digest not in self.content.values():
            self.content[group[0]] = digest

    @rule(token=st.integers(0, 3))
    def match(self, token: int) -> None:
        found = self.pool.match(prefix(token))
        assert found == [block for block, digest in self.content.items() if digest == prefix(token)[0]]
        if found:
            self.held.append(found)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        self.pool.release(self.held.pop(data.draw(st.integers(0, len(self.held) - 1))))

    @invariant()
    def counts_agree(self) -> None:
        held = {block for group in self.held for block in group}
        assert self.pool.used == len(held)
        assert self.pool.available == BLOCKS - len(held)
        assert self.pool.cached == len(set(self.content) - held)


TestPool = Pool.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
