"""One step: what the scheduler wants computed, guesses before it, the draft's share after it, and its rows.

Also what passes between steps and blocks: prompts that several answers share, states that come and go.
Knows nothing of callers.
"""

from __future__ import annotations

from dataclasses import dataclass

from conch.engine.batch import Rows, Runner
from conch.engine.sampling import Chooser
from conch.engine.scheduler import Batch, Scheduler
from conch.engine.sequence import Sequence
from conch.engine.speculation import Speculation
from conch.engine.state import KvState


@dataclass(frozen=True, slots=True)
class Step:
    """What was computed; `chooser` has its rows, in the order of the slots."""

    batch: Batch
    decoding: int
    chooser: Chooser | None


class Stepper:
    """Computes steps of `scheduler` on `runner`. For the engine's thread alone."""

    def __init__(self, runner: Runner, scheduler: Scheduler, speculation: Speculation | None) -> None:
        self._runner = runner
        self._scheduler = scheduler
        self._speculation = speculation

    def compute(self, now_ns: int) -> Step:
        """The next step. Raises whatever goes wrong in it."""
        decoding = self._scheduler.decoding()
        if self._speculation:
            self._speculation.guess(self._scheduler, decoding)
        batch = self._scheduler.schedule(decoding)
        if not batch.slots:
            raise RuntimeError("requests wait, but none can be scheduled")
        for sequence in batch.sequences:
            sequence.first_scheduled_ns = sequence.first_scheduled_ns or now_ns
            self._take_up(sequence)
        rows = self._runner.step(batch.slots)
        if self._speculation:
            self._speculation.follow(batch)
        return Step(batch, len(decoding), _chooser(rows, batch))

    def learn(self, step: Step, produced: int, seconds: float) -> None:
        """The step gave so many tokens in so many seconds, choosing included."""
        prompts = sum(len(slot.tokens) for slot in step.batch.slots[step.decoding :])
        self._scheduler.pace.record(step.decoding, prompts, seconds)
        if self._speculation and step.decoding == len(step.batch.slots):
            self._speculation.learn(step.decoding, produced, seconds)

    def fork(self, parent: Sequence) -> list[Sequence]:
        """The prompt of `parent` is computed: its siblings may use it. Returns those that start at once."""
        children, parent.siblings = parent.siblings, []
        for child in children:
            copied = self._scheduler.fork(parent, child)
            if copied:
                self._runner.copy_block(*copied)
        return [child for child in children if child.blocks]

    def state(self, sequence: Sequence) -> KvState:
        """What another engine needs to go on behind the tokens of `sequence`."""
        count = -(-sequence.past // self._runner.tokens_per_block)
        return KvState(
            self._runner.layout,
            tuple(sequence.tokens[: sequence.prompt_len]),
            tuple(sequence.tokens[sequence.prompt_len :]),
            sequence.past,
            self._runner.read_blocks(sequence.blocks[:count]),
        )

    def _take_up(self, sequence: Sequence) -> None:
        """Fill the first blocks of a sequence with the state that it came with."""
        if sequence.arriving is not None:
            state, sequence.arriving = sequence.arriving, None
            self._runner.write_blocks(sequence.blocks[: len(state.blocks[0])], state.blocks)


def _chooser(rows: Rows | None, batch: Batch) -> Chooser | None:
    wanted = sum(slot.rows for slot in batch.slots)
    if wanted != (len(rows.top_ids) if rows else 0):
        raise RuntimeError(f"the runner did not give the {wanted} rows that were asked for")
    return Chooser(rows) if rows else None
