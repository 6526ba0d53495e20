"""One answer of a chat taken apart: reasoning first, then text and calls of tools."""

from __future__ import annotations

from conch.gateway.answers.parts import Content, Part, Reasoning
from conch.gateway.answers.reasoning import ReasoningReader
from conch.gateway.calls.reader import CallReader


class ReplyReader:
    """Told of an answer's text as it comes, says what it adds."""

    def __init__(self, reasoning: ReasoningReader | None, calls: CallReader | None) -> None:
        self._reasoning = reasoning
        self._calls = calls
        self.reasoning_tokens = 0

    @property
    def done(self) -> bool:
        """What still comes does not count."""
        return self._calls is not None and self._calls.done

    def finish_reason(self, reason: str) -> str:
        """OpenAI's, for an answer that the engine has ended with `reason`."""
        return "tool_calls" if reason == "stop" and self._calls is not None and self._calls.count else reason

    def push(self, text: str, tokens: int, *, last: bool) -> list[Part]:
        """`tokens`: of the whole answer so far. `last`: nothing more will come."""
        parts: list[Part] = []
        if self._reasoning is not None:
            thought, text = self._reasoning.push(text)
            if last:
                more, rest = self._reasoning.flush()
                thought, text = thought + more, text + rest
            if thought or not self._reasoning.over:
                self.reasoning_tokens = tokens
            if thought:
                parts.append(Reasoning(thought))
        if self._calls is None:
            return [*parts, Content(text)] if text else parts
        parts += self._calls.push(text)
        return parts + self._calls.flush() if last else parts
