"""Parts put together to OpenAI's assistant message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from conch.gateway.answers.parts import CallArguments, CallStart, Content, Part, Reasoning


class MessageBuilder:
    """Told of parts as they come."""

    def __init__(self) -> None:
        self.text = ""
        self.reasoning = ""
        self.calls: list[dict[str, Any]] = []
        """As `tool_calls` has them."""

    def add(self, parts: Sequence[Part]) -> None:
        for part in parts:
            match part:
                case Content(text):
                    self.text += text
                case Reasoning(text):
                    self.reasoning += text
                case CallStart(_, id, name):
                    self.calls.append({"id": id, "type": "function", "function": {"name": name, "arguments": ""}})
                case CallArguments(index, text):
                    self.calls[index]["function"]["arguments"] += text

    def message(self) -> dict[str, Any]:
        """Without text, `content` is null if there is something else."""
        message: dict[str, Any] = {"role": "assistant", "content": self.text, "refusal": None}
        if self.reasoning:
            message |= {"reasoning_content": self.reasoning, "reasoning": self.reasoning}
        if self.calls:
            message["tool_calls"] = self.calls
        if not self.text and (self.reasoning or self.calls):
            message["content"] = None
        return message
