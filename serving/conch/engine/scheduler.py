"""In-flight batching: which sequences compute which tokens in the next step.

Every sequence has tokens that are not computed yet: one while it decodes, more while its prompt (or what a
preemption threw away) is being computed. A step is

1. one token for every decoding sequence;
2. then prompts, first come first served within a priority, a chunk of each: up to `max_num_tokens` in all,
   but while others decode no more than `PREFILL_CHUNK` tokens, times the number of prompts for each of them.
   A prompt delays those who are reading only a little; a crowd that waits is not held up by one who reads.
   Chunks end at multiples of `PREFILL_CHUNK` and are never cut further: kernels round by the shape of what
   they compute, and an answer must not depend on who else was served;
3. a waiting sequence is admitted when the blocks for all its tokens are there, beside one block of growth for
   each running sequence. Nothing overtakes the first in line, so nothing starves.

When a decoding sequence needs a block and none is left, the last in line of the running is preempted: it
gives its blocks back and waits at its old place. The first in line can take every block, and no request is
taken that needs more than there are, so some sequence always advances.

Without `chunked_prefill` a prompt is computed in one step; only a recomputation may still be cut.
Knows nothing of logits, callers or clocks.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field

from conch.engine.batch import Slot
from conch.engine.blocks import BlockPool
from conch.engine.config import EngineConfig
from conch.engine.request import Request
from conch.engine.sequence import Sequence
from conch_build.errors import RequestError

PREFILL_CHUNK = 128


@dataclass(slots=True)
class Batch:
    """One step: `slots[i]` is the share of `sequences[i]`."""

    sequences: list[Sequence] = field(default_factory=list)
    slots: list[Slot] = field(default_factory=list)

    def add(self, sequence: Sequence, count: int) -> None:
        slot, past, tokens = sequence.slot, sequence.past, sequence.tokens
        slot.tokens = tokens[past : past + count]
        slot.past = past
        slot.blocks = sequence.blocks
        slot.sample = past + count == len(tokens)
        self.sequences.append(sequence)
        self.slots.append(slot)


def _rank(sequence: Sequence) -> tuple[int, int]:
    return sequence.rank


class Scheduler:
    """Owns the block pool and the order of the sequences. `waiting` is sorted, first in line first."""

    def __init__(self, config: EngineConfig, num_blocks: int, tokens_per_block: int) -> None:
        self.config = config
        self.tokens_per_block = tokens_per_block
        self.pool = BlockPool(num_blocks)
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.preemptions = 0
        self.prefix_hit_tokens = 0
        # A lone prompt's chunk must fit beside a full batch of others that decode.
        self.chunk = min(PREFILL_CHUNK, config.max_num_tokens - config.batch_size + 1)

    @property
    def busy(self) -> bool:
        return bool(self.running or self.waiting)

    def check(self, request: Request) -> None:
        """Raise RequestError for a request that could never have the blocks it may need."""
        needed = self._blocks_for(len(request.prompt) + request.max_tokens - 1)
        if needed > self.pool.num_blocks:
            raise RequestError(
                f"prompt and max_tokens may need {needed} KV blocks of {self.tokens_per_block} tokens; "
                f"the engine has {self.pool.num_blocks}",
                param="max_tokens",
                code="context_length_exceeded",
                fix="Shorten the prompt, lower max_tokens, or raise engine.kv_cache.size in the plan.",
            )

    def add(self, sequence: Sequence) -> None:
        insort(self.waiting, sequence, key=_rank)

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence, wherever it is, and take its blocks back."""
        if sequence in self.running:
            self.running.remove(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
        self.pool.release(sequence.blocks)
        sequence.blocks = []

    def schedule(self) -> Batch:
        """The next step. Empty only if there is nothing to do."""
        self._grow()
        batch, prompts = Batch(), []
        for sequence in self.running:
            if len(sequence.tokens) - sequence.past == 1:
                batch.add(sequence, 1)
            else:
                prompts.append(sequence)
        left = self._prompt_budget(decoding=len(batch.slots), prompts=len(prompts) + len(self.waiting))
        for sequence in prompts:
            left -= self._add_prompt(batch, sequence, left)
        while self.waiting and left > 0 and len(self.running) < self.config.batch_size:
            sequence = self.waiting[0]
            if not self._admit(sequence, left):
                break
            left -= self._add_prompt(batch, sequence, left)
        return batch

    def advance(self, batch: Batch) -> list[Sequence]:
        """The step was computed: account for it, and return the sequences that have a row to be sampled."""
        sampled = []
        for sequence, slot in zip(batch.sequences, batch.slots, strict=True):
            sequence.past += len(slot.tokens)
            if sequence.past >= (sequence.published + 1) * self.tokens_per_block and self.config.reuse:
                self._publish(sequence)
            if slot.sample:
                sampled.append(sequence)
        return sampled

    def _grow(self) -> None:
        """Give a block to each decoding sequence that needs one, preempting from the end of the line."""
        full = [sequence for sequence in self.running if sequence.past == len(sequence.blocks) * self.tokens_per_block]
        for sequence in sorted(full, key=_rank):
            while sequence.blocks and not self.pool.available:
                self._preempt(max(self.running, key=_rank))
            if sequence.blocks:  # it was not itself the last in line
                sequence.blocks += self.pool.take(1)
                sequence.new_blocks += 1

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self.pool.release(sequence.blocks)
        sequence.blocks = []
        sequence.past = 0
        self.preemptions += 1
        self.add(sequence)

    def _prompt_budget(self, decoding: int, prompts: int) -> int:
        left = self.config.max_num_tokens - decoding
        if decoding and self.config.chunked_prefill:
            return min(left, PREFILL_CHUNK * max(1, prompts // decoding))
        return left

    def _admit(self, sequence: Sequence, budget: int) -> bool:
        """Start a waiting sequence if there is room: share its known prefix, take blocks for the rest."""
        size = len(sequence.tokens)
        shared: list[int] = []
        if self.config.reuse:  # the last token is always computed: it gives the row to sample
            full = (size - 1) // self.tokens_per_block
            shared = self.pool.match(sequence.digest(full, self.tokens_per_block))
        past = len(shared) * self.tokens_per_block
        needed = self._blocks_for(size) - len(shared)
        if needed + len(self.running) > self.pool.available or self._share(past, size) > budget:
            self.pool.release(shared)
            return False
        if not sequence.new_blocks:  # the first time: what a preemption left behind is no hit
            sequence.cached_tokens = past
            self.prefix_hit_tokens += past
        sequence.blocks = shared + self.pool.take(needed)
        sequence.past, sequence.published = past, len(shared)
        sequence.reused_blocks += len(shared)
        sequence.new_blocks += needed
        self.running.append(self.waiting.pop(0))
        return True

    def _share(self, past: int, size: int) -> int:
        """Tokens of a prompt's next step: its next chunk, or all that is missing."""
        missing = size - past
        if self.config.chunked_prefill or missing > self.config.max_prompt_len:
            return min(missing, self.chunk - past % self.chunk)
        return missing

    def _add_prompt(self, batch: Batch, sequence: Sequence, budget: int) -> int:
        count = self._share(sequence.past, len(sequence.tokens))
        if count > budget:
            return 0
        batch.add(sequence, count)
        return count

    def _publish(self, sequence: Sequence) -> None:
        full = sequence.past // self.tokens_per_block
        digests = sequence.digest(full, self.tokens_per_block)
        for index in range(sequence.published, full):
            self.pool.publish(sequence.blocks[index], digests[index])
        sequence.published = full

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.tokens_per_block)
