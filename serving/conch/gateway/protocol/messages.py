"""The turns of a conversation."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import WithJsonSchema, field_validator, model_validator

from conch.gateway.protocol.base import Part

_PART = {
    "type": "object",
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
    "required": ["type", "text"],
    "additionalProperties": False,
}
_PARTS = {"type": "array", "minItems": 1, "items": _PART}


class FunctionCall(Part):
    name: str
    arguments: str | dict[str, Any] = ""


class ToolCall(Part):
    id: str = ""
    type: Literal["function"] = "function"
    function: FunctionCall
    index: int = 0


class Message(Part):
    """One turn. A list of text parts is joined with nothing between; `developer` is the same as `system`."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[str | None, WithJsonSchema({"anyOf": [{"type": "string"}, _PARTS, {"type": "null"}]})] = None
    """A text, or a list of text parts."""
    name: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    """The same by another name."""
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None

    @field_validator("content", mode="before")
    @classmethod
    def _joined(cls, content: Any) -> Any:
        return "".join(_text_of(part) for part in _non_empty(content)) if isinstance(content, list) else content

    @model_validator(mode="after")
    def _complete(self) -> Message:
        if self.content is None and not (self.role == "assistant" and (self.tool_calls or self.refusal)):
            raise ValueError("`content` is missing: only an assistant's turn with `tool_calls` can do without")
        if self.tool_calls is not None and self.role != "assistant":
            raise ValueError("only an assistant's turn has `tool_calls`")
        return self


def _non_empty(parts: list[Any]) -> list[Any]:
    if not parts:
        raise ValueError("`content` is an empty list")
    return parts


def _text_of(part: Any) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in ("image_url", "input_image", "input_audio", "file", "input_file", "video_url"):
        raise ValueError(f"a part of `content` is of the type '{kind}': this model reads text only")
    if kind not in ("text", "refusal"):
        raise ValueError("a part of `content` must be {'type': 'text', 'text': ...}: this model reads text only")
    if part.keys() != {"type", kind} or not isinstance(part[kind], str):
        raise ValueError(f"a {kind} part has exactly `type` and `{kind}`")
    return str(part[kind])
