"""Where guesses come from: a smaller model, or what the text has said before. Knows nothing of verification."""

from __future__ import annotations

from collections.abc import Sequence as Many

from conch.engine.batch import Runner, Slot
from conch.engine.ngrams import NgramIndex
from conch.engine.scheduler import Batch
from conch.engine.sequence import Sequence

FEW = 4
"""So many tokens are computed faster one by one than as a prompt."""


class ModelDrafter:
    """A draft model. Its caches have the target's block numbers, so both use the same block tables."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def guess(self, sequences: Many[Sequence], rooms: Many[int]) -> None:
        going = [(sequence, room) for sequence, room in zip(sequences, rooms, strict=True) if room > 0]
        slots = [self._slot(sequence, sequence.tokens[sequence.draft_past :]) for sequence, _ in going]
        ahead = 0
        while slots:
            rows = self._runner.step(slots)
            assert rows is not None
            for row, (sequence, _) in enumerate(going):
                sequence.draft.append(sequence.sampler.guess(rows, row, ahead))
                sequence.draft_past = len(sequence.tokens) + ahead
            ahead += 1
            going = [(sequence, room) for sequence, room in going if room > ahead]
            slots = [self._slot(sequence, sequence.draft[-1:]) for sequence, _ in going]

    def follow(self, batch: Batch) -> None:
        """Compute the prompts of the step: the target's blocks are shared by their content, and so are the draft's."""
        slots = []
        for sequence, slot in batch:
            end = slot.past + len(slot.tokens)
            if end <= sequence.prompt_len and sequence.draft_past == slot.past:
                slots.append(Slot(slot.tokens, slot.past, slot.blocks, 0))
                sequence.draft_past = end
        if slots:
            self._runner.step(slots)

    def _slot(self, sequence: Sequence, tokens: list[int]) -> Slot:
        return Slot(tokens, sequence.draft_past, sequence.blocks, 1, single=len(tokens) <= FEW)


class NgramDrafter:
    """Prompt lookup: what followed the last few tokens where they stood before, in prompt or answer."""

    def __init__(self, max_matching_ngram_size: int) -> None:
        self._longest = max_matching_ngram_size

    def guess(self, sequences: Many[Sequence], rooms: Many[int]) -> None:
        for sequence, room in zip(sequences, rooms, strict=True):
            if room > 0:
                sequence.ngrams = sequence.ngrams or NgramIndex(self._longest)
                sequence.draft = sequence.ngrams.continuation(sequence.tokens, room)

    def follow(self, batch: Batch) -> None:
        """Nothing is kept of a prompt but its tokens."""
