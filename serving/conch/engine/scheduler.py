"""In-flight batching: which sequences compute which tokens in the next step.

Every sequence has tokens that are not computed yet: one while it decodes, more while its prompt (or what a
preemption threw away) is being computed. A step is

1. one token for every decoding sequence, and behind it what speculation guesses to follow;
2. then prompts, first come first served within a priority, a chunk of each. While others decode, a step takes as
   many tokens of prompts as `Pace` allows: one prompt delays those who are reading only a little, a crowd of them is
   not held up by a few readers;
3. a waiting sequence is admitted when the blocks for all its tokens are there, beside one block of growth for
   each running sequence. Nothing overtakes the first in line, so nothing starves.

Answers must not depend on who else was served, and kernels round a single token otherwise than several in a row,
however many those are. So no chunk of a prompt is a single token, unless a prompt ends one token behind a block:
that one, which may be all that is left when blocks are reused, and every token of an answer, is computed as a
single one, also when a preemption has it computed again.

When a decoding sequence needs a block and none is left, the last in line of the running is preempted: it
gives its blocks back and waits at its old place. The first in line can take every block, and no request is
taken that needs more than there are, so some sequence always advances.

Without `chunked_prefill` a prompt is computed in one step; only a recomputation may still be cut.
Knows nothing of logits, callers or clocks.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass, field

from conch.engine.batch import Slot
from conch.engine.blocks import BlockPool
from conch.engine.config import EngineConfig
from conch.engine.pace import FEWEST, Pace
from conch.engine.request import Request
from conch.engine.sequence import Sequence
from conch_build.errors import RequestError

CHUNK = 128
"""Of one prompt in one step, where there are others."""
STEP_PROMPT_TOKENS = 512
"""Of all prompts in one step: more would only make the first of them wait for the last, and newcomers for them all."""


@dataclass(slots=True)
class Batch:
    """One step: `slots[i]` is the share of `sequences[i]`."""

    sequences: list[Sequence] = field(default_factory=list)
    slots: list[Slot] = field(default_factory=list)

    def add(self, sequence: Sequence, count: int) -> None:
        """Compute the next `count` tokens, and the draft behind the last of them."""
        slot, past, tokens = sequence.slot, sequence.past, sequence.tokens
        end = past + count
        slot.tokens = tokens[past:end]
        slot.past = past
        slot.blocks = sequence.blocks
        slot.single = past >= sequence.singles_from
        slot.rows = int(end == len(tokens))
        if sequence.draft:
            slot.tokens += sequence.draft
            slot.rows += len(sequence.draft)
        elif past < sequence.prompt_len and sequence.request.sampling.prompt_log_probs:
            slot.rows = count
        self.sequences.append(sequence)
        self.slots.append(slot)

    def __iter__(self) -> Iterator[tuple[Sequence, Slot]]:
        return zip(self.sequences, self.slots, strict=True)


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
        self.pace = Pace()
        # The smallest chunk of a prompt must fit beside a full batch of others that decode.
        self.fewest = min(FEWEST, config.max_num_tokens - config.batch_size + 1)

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
        sequence.singles_from = sequence.prompt_len - (sequence.prompt_len % self.tokens_per_block == 1)
        insort(self.waiting, sequence, key=_rank)

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence, wherever it is, and take its blocks back."""
        if sequence in self.running:
            self.running.remove(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
        self.pool.release(sequence.blocks)
        sequence.blocks = []

    def decoding(self) -> list[Sequence]:
        """The running sequences that need one token, each with a block for it: the others may be preempted."""
        full = [sequence for sequence in self.running if sequence.past == len(sequence.blocks) * self.tokens_per_block]
        for sequence in sorted(full, key=_rank):
            while sequence.blocks and not self.pool.available:
                self._preempt(max(self.running, key=_rank))
            if sequence.blocks:  # it was not itself the last in line
                self._extend(sequence, 1)
        return [sequence for sequence in self.running if sequence.missing == 1]

    def room_for_drafts(self, decoding: list[Sequence], longest: int) -> list[int]:
        """How many tokens may be guessed for each of `decoding`, at most `longest`, with blocks taken for them.

        No more than can still be sent, and nothing that another sequence would have to give up blocks for.
        """
        prompts = self.waiting or len(decoding) < len(self.running)
        spare = self.config.max_num_tokens - len(decoding) - (self.fewest if prompts else 0)
        longest = min(longest, max(0, spare // max(1, len(decoding))))
        rooms = []
        for sequence in decoding:
            room = min(longest, sequence.request.max_tokens - sequence.produced - 1)
            wanted = self._blocks_for(sequence.past + 1 + room) - len(sequence.blocks)
            free = self.pool.available - len(self.running)
            if wanted > 0 and free > 0:
                self._extend(sequence, min(wanted, free))
            rooms.append(max(0, min(room, len(sequence.blocks) * self.tokens_per_block - sequence.past - 1)))
        return rooms

    def schedule(self, decoding: list[Sequence]) -> Batch:
        """The next step: `decoding` as the method of that name gave it, and prompts. Empty if nothing is to do."""
        batch = Batch()
        for sequence in decoding:
            batch.add(sequence, 1)
        prompts = [sequence for sequence in self.running if sequence.missing > 1]
        computed = sum(len(slot.tokens) for slot in batch.slots)
        count = len(prompts) + len(self.waiting)
        left = self._prompt_budget(len(decoding), computed, prompts=count)
        most = CHUNK if count > 1 and self.config.chunked_prefill else left
        for sequence in prompts:
            left -= self._add_prompt(batch, sequence, min(left, most))
        while self.waiting and left > 0 and len(self.running) < self.config.batch_size:
            sequence = self.waiting[0]
            if not self._admit(sequence, min(left, most)):
                break
            left -= self._add_prompt(batch, sequence, min(left, most))
        return batch

    def settle(self, sequence: Sequence, computed: int) -> None:
        """`computed` tokens of the sequence have their keys and values now: share the blocks that they fill."""
        sequence.past = computed
        full = computed // self.tokens_per_block
        if full > sequence.published and self.config.reuse:
            digests = sequence.digest(full, self.tokens_per_block)
            for index in range(sequence.published, full):
                self.pool.publish(sequence.blocks[index], digests[index])
            sequence.published = full

    def fork(self, parent: Sequence, child: Sequence) -> tuple[int, int] | None:
        """Let `child` go on where the prompt of `parent` ends, with its blocks; else it waits for its turn.

        Full blocks are shared. The last one, part full, is written by both: the pair to be copied is returned.
        """
        free = self.pool.available - len(self.running)
        if not parent.blocks or len(self.running) >= self.config.batch_size or free <= 0:
            self.add(child)
            return None
        full = parent.prompt_len // self.tokens_per_block
        child.blocks = parent.blocks[:full]
        self.pool.hold(child.blocks)
        child.past = parent.prompt_len
        child.draft_past = min(parent.draft_past, full * self.tokens_per_block)  # the copy is the target's alone
        child.published, child.reused_blocks = min(parent.published, full), full
        self.running.append(child)
        if parent.prompt_len % self.tokens_per_block == 0:
            return None
        self._extend(child, 1)
        return parent.blocks[full], child.blocks[full]

    def _extend(self, sequence: Sequence, count: int) -> None:
        sequence.blocks += self.pool.take(count)
        sequence.new_blocks += count

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self.pool.release(sequence.blocks)
        sequence.blocks = []
        sequence.past = sequence.draft_past = 0
        self.preemptions += 1
        self.add(sequence)

    def _prompt_budget(self, decoding: int, computed: int, prompts: int) -> int:
        """Tokens of prompts beside `computed` tokens of `decoding` sequences."""
        left = min(self.config.max_num_tokens - computed, STEP_PROMPT_TOKENS)
        if not self.config.chunked_prefill:
            return self.config.max_num_tokens - computed
        return min(left, self.pace.tokens(decoding, prompts)) if decoding else left

    def _admit(self, sequence: Sequence, budget: int) -> bool:
        """Start a waiting sequence if there is room: share its known prefix, take blocks for the rest."""
        size = len(sequence.tokens)
        shared: list[int] = []
        arriving = sequence.arriving
        if self.config.reuse and arriving is None and not sequence.request.sampling.prompt_log_probs:
            full = (size - 1) // self.tokens_per_block  # the last token is always computed: it gives the row to sample
            shared = self.pool.match(sequence.digest(full, self.tokens_per_block))
        past = arriving.computed if arriving else len(shared) * self.tokens_per_block
        needed = self._blocks_for(size) - len(shared)
        if needed + len(self.running) > self.pool.available or not self._share(sequence, past, budget):
            self.pool.release(shared)
            return False
        if not sequence.new_blocks:  # the first time: what a preemption left behind is no hit
            sequence.cached_tokens = past
            self.prefix_hit_tokens += 0 if arriving else past
        sequence.past, sequence.draft_past = past, 0 if arriving else past
        sequence.published = len(shared)
        sequence.reused_blocks += len(shared)
        sequence.blocks = shared
        self._extend(sequence, needed)
        self.running.append(self.waiting.pop(0))
        return True

    def _share(self, sequence: Sequence, past: int, budget: int) -> int:
        """Tokens of a sequence's next step, `past` of them being computed: 0 if the budget holds none."""
        size, missing = len(sequence.tokens), sequence.singles_from - past
        if missing <= 0:
            return min(size - past, budget)
        if not self.config.chunked_prefill and size <= self.config.max_prompt_len:
            return missing if missing <= budget else 0
        count = min(missing, budget)
        if missing - count == 1 < count:  # the last one would be alone
            count -= 1
        return count if count >= min(missing, self.fewest - 1) else 0

    def _add_prompt(self, batch: Batch, sequence: Sequence, budget: int) -> int:
        count = self._share(sequence, sequence.past, budget)
        if count:
            batch.add(sequence, count)
        return count

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.tokens_per_block)
