"""How much of a prompt a step may compute beside those who read, learned from the steps themselves. Arithmetic only.

A token of a prompt costs more the more comes before it, and every machine has its own prices, so none is assumed.
"""

from __future__ import annotations

PATIENCE = 1.0
"""A prompt may add so many times what a step without prompts takes; several add as much each."""
FEWEST = 4
"""Tokens of prompts in a step that also decodes."""
FIRST_GUESS = 16
_MEMORY = 1 / 16
"""Weight of a new step in the running means of steps without prompts; a price is as good as its last two steps."""


class Pace:
    def __init__(self) -> None:
        self._plain: dict[int, float] = {}  # seconds of a step without prompts, by the size of its batch
        self._price = 0.0  # seconds that a token of a prompt adds to a step

    def tokens(self, decoding: int, prompts: int) -> int:
        """Tokens of so many prompts that the next step may compute beside so many decoding sequences."""
        plain = self._plain.get(decoding.bit_length())
        if plain is None or not self._price:
            return FIRST_GUESS * prompts
        return max(int(PATIENCE * prompts * plain / self._price), FEWEST)

    def record(self, decoding: int, prompt_tokens: int, seconds: float) -> None:
        """What a step has cost."""
        size = decoding.bit_length()
        plain = self._plain.get(size)
        if not decoding:
            return
        if not prompt_tokens:
            self._plain[size] = seconds if plain is None else plain + _MEMORY * (min(seconds, 2 * plain) - plain)
        elif plain is not None:
            price = max(seconds - plain, 0.1 * plain) / prompt_tokens
            self._price = (self._price + price) / 2 if self._price else price
