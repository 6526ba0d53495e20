"""Tools that a model may call, and which of them it must."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_serializer

from conch.gateway.protocol.base import Part
from conch.gateway.protocol.guided import Schema

NAME = r"^[a-zA-Z0-9_.-]{1,64}$"


class Function(Part):
    name: str = Field(pattern=NAME)
    description: str | None = None
    parameters: Schema | None = None
    """A JSON schema; absent or without properties: the function has none."""
    strict: bool = False
    """Arguments follow the schema even where the model is free to call or not."""


class Tool(Part):
    type: Literal["function"]
    function: Function


class ToolChoice(Part):
    """What `tool_choice` comes to."""

    mode: Literal["none", "auto", "required"]
    names: list[str] | None = None
    """Those that may be called; None: every one."""
    single: bool = False
    """One named function, called once."""

    @model_serializer
    def given(self) -> Any:
        """As OpenAI's clients write it."""
        if self.names is None:
            return self.mode
        tools = [{"type": "function", "function": {"name": name}} for name in self.names]
        return (
            tools[0] if self.single else {"type": "allowed_tools", "allowed_tools": {"mode": self.mode, "tools": tools}}
        )


_NAMED = {
    "type": "object",
    "properties": {
        "type": {"const": "function"},
        "function": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
    },
    "required": ["type", "function"],
}
_ALLOWED = {
    "type": "object",
    "properties": {
        "type": {"const": "allowed_tools"},
        "allowed_tools": {
            "type": "object",
            "properties": {"mode": {"enum": ["auto", "required"]}, "tools": {"type": "array", "items": _NAMED}},
            "required": ["mode", "tools"],
        },
    },
    "required": ["type", "allowed_tools"],
}
TOOL_CHOICE_SCHEMA = {"anyOf": [{"enum": ["none", "auto", "required"]}, _NAMED, _ALLOWED]}


def tool_choice_of(given: Any) -> dict[str, Any]:
    """OpenAI's forms as fields of `ToolChoice`. Raises ValueError."""
    match given:
        case "none" | "auto" | "required":
            return {"mode": given}
        case {"type": "function", "function": {"name": str(name), **more}, **others} if not more and not others:
            return {"mode": "required", "names": [name], "single": True}
        case {"type": "allowed_tools", "allowed_tools": {"mode": "auto" | "required" as mode, "tools": [*tools]}} if (
            tools
        ):
            names = [tool_choice_of(tool)["names"] for tool in tools if isinstance(tool, dict)]
            if len(names) == len(tools) and all(names):
                return {"mode": mode, "names": [name for each in names for name in each]}
    raise ValueError(
        "must be 'none', 'auto', 'required', {'type': 'function', 'function': {'name': ...}} or "
        "{'type': 'allowed_tools', 'allowed_tools': {'mode': 'auto' or 'required', 'tools': [...]}}"
    )
