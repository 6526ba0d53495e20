"""A growing answer taken apart into reasoning and what follows it, by the marks around the reasoning.

Reasoning comes first or not at all: the marks further on are text.
"""

from __future__ import annotations

from dataclasses import dataclass

from conch.gateway.answers.stops import possible_start


@dataclass(frozen=True)
class Marks:
    """What a model writes around its reasoning."""

    opening: str
    closing: str


MARKS = (Marks("<think>", "</think>"), Marks("[THINK]", "[/THINK]"))


class ReasoningReader:
    """`begun`: the prompt ends with the opening mark."""

    def __init__(self, marks: Marks, *, begun: bool) -> None:
        self._marks = marks
        self._held = ""
        self._begun = begun
        self._after = self._said = False
        self.over = False
        """What comes now is the answer itself."""

    def push(self, text: str) -> tuple[str, str]:
        """The reasoning and the answer that new text adds."""
        if self.over:
            return "", self._answer(text)
        self._held += text
        if not self._begun:
            start = self._held.lstrip()
            if start != self._marks.opening and self._marks.opening.startswith(start):
                return "", ""
            if not start.startswith(self._marks.opening):
                self.over = True
                return "", self._answer(self._taken())
            self._begun = True
            self._held = start.removeprefix(self._marks.opening)
        if not self._said:
            self._held = self._held.lstrip()
        at = self._held.find(self._marks.closing)
        if at >= 0:
            self.over = True
            reasoning, rest = self._held[:at].rstrip(), self._held[at + len(self._marks.closing) :]
            self._held = ""
            self._after = True
            return reasoning, self._answer(rest)
        keep = len(self._held[: possible_start(self._held, self._marks.closing)].rstrip())
        reasoning, self._held = self._held[:keep], self._held[keep:]
        self._said = self._said or bool(reasoning)
        return reasoning, ""

    def flush(self) -> tuple[str, str]:
        """What was held back, at the end of the answer."""
        if self.over:
            return "", ""
        return (self._taken().rstrip(), "") if self._begun else ("", self._taken())

    def _answer(self, text: str) -> str:
        """Blanks between the reasoning and the answer belong to neither."""
        if self._after:
            text = text.lstrip()
            self._after = not text
        return text

    def _taken(self) -> str:
        text, self._held = self._held, ""
        return text
