"""The body of /v1/responses, and the conversation that it stands for."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator

from conch.gateway.protocol.base import Label, Metadata, Part
from conch.gateway.protocol.generation import UNDONE
from conch.gateway.protocol.guided import Schema
from conch.gateway.protocol.tools import NAME

UNDONE_RESPONSES: dict[str, tuple[Any, ...]] = {
    **{name: values for name, values in UNDONE.items() if name != "store"},
    "background": (False,),
    "background_options": (),
    "conversation": (),
    "context_management": (),
    "prompt": (),
    "max_tool_calls": (),
    "truncation": ("disabled",),
    "access_programs": (),
    "image": (),
}


class ResponseTool(Part):
    type: Literal["function"]
    name: str = Field(pattern=NAME)
    description: str | None = None
    parameters: Schema | None = None
    strict: bool = True


class TextFormat(Part):
    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str | None = None
    description: str | None = None
    schema_: Schema | None = Field(None, alias="schema")
    strict: bool = False


class TextConfig(Part):
    format: TextFormat = Field(default_factory=lambda: TextFormat.model_validate({}))
    verbosity: Literal["medium"] = "medium"


class ReasoningConfig(Part):
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None


class ResponseStreamOptions(Part):
    include_obfuscation: Literal[False] = False


class ResponsesRequest(Part):
    input: str | list[dict[str, Any]] = Field(min_length=1)
    """A text, or items: messages, function calls and their outputs, reasoning."""
    model: str | None = Field(None, max_length=256)
    instructions: str | None = None
    """A system turn before everything else; not carried over to the next response."""
    previous_response_id: str | None = None
    """The conversation goes on from there, as long as the gateway remembers it."""
    store: bool = True
    """Remember the response, in memory and within bounds."""
    max_output_tokens: int | None = Field(None, ge=1)
    temperature: float = Field(1.0, ge=0, le=2)
    top_p: float = Field(1.0, gt=0, le=1)
    top_logprobs: int | None = Field(None, ge=0, le=20)
    include: list[Literal["message.output_text.logprobs"]] = Field(default_factory=list)
    stream: bool = False
    stream_options: ResponseStreamOptions | None = None
    text: TextConfig = TextConfig()
    tools: list[ResponseTool] = Field(default_factory=list)
    tool_choice: Any = "auto"
    parallel_tool_calls: bool = True
    reasoning: ReasoningConfig | None = None
    service_tier: Literal["auto", "default", "flex", "priority", "fast"] = "auto"
    timeout: float | None = Field(None, gt=0, le=1e6)
    """Seconds that the response may take, where that is less than the server's own limit."""
    metadata: Metadata | None = None
    user: Label | None = None
    safety_identifier: Label | None = None
    prompt_cache_key: Label | None = None

    @field_validator("tool_choice")
    @classmethod
    def _choice(cls, given: Any) -> Any:
        """As chat completions have it."""
        match given:
            case {"type": "function", "name": name, **more} if not more:
                return {"type": "function", "function": {"name": name}}
            case {"type": "allowed_tools", "mode": mode, "tools": [*tools], **more} if not more:
                named = [cls._choice(tool) if isinstance(tool, dict) else tool for tool in tools]
                return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": named}}
            case "none" | "auto" | "required":
                return given
        raise ValueError("must be 'none', 'auto', 'required', {'type': 'function', 'name': ...} or allowed tools")

    @property
    def wants_log_probs(self) -> bool:
        return self.top_logprobs is not None or bool(self.include)

    def chat(self, earlier: list[dict[str, Any]]) -> dict[str, Any]:
        """The same as a body of /v1/chat/completions, after the `earlier` messages. Raises ValueError."""
        system = [{"role": "system", "content": self.instructions}] if self.instructions is not None else []
        given = {
            "messages": [*system, *earlier, *self.messages()],
            "model": self.model,
            "max_completion_tokens": self.max_output_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "logprobs": self.wants_log_probs,
            "top_logprobs": self.top_logprobs,
            "stream": self.stream,
            "tools": [
                {"type": "function", "function": tool.model_dump(exclude={"type"}, exclude_none=True)}
                for tool in self.tools
            ],
            "tool_choice": self.tool_choice,
            "response_format": self._response_format(),
            "reasoning_effort": self.reasoning.effort if self.reasoning else None,
            "service_tier": self.service_tier,
            "timeout": self.timeout,
        }
        if "parallel_tool_calls" in self.model_fields_set:
            given["parallel_tool_calls"] = self.parallel_tool_calls
        return {name: value for name, value in given.items() if value is not None}

    def messages(self) -> list[dict[str, Any]]:
        """The input as messages. Raises ValueError, which names the item."""
        if isinstance(self.input, str):
            return [{"role": "user", "content": self.input}]
        messages: list[dict[str, Any]] = []
        for index, item in enumerate(self.input):
            try:
                _add(messages, item)
            except (ValueError, KeyError) as error:
                said = f"`{error.args[0]}` is missing" if isinstance(error, KeyError) else str(error)
                raise ValueError(f"item {index}: {said}") from None
        return messages

    def _response_format(self) -> dict[str, Any]:
        given = self.text.format
        if given.type != "json_schema":
            return {"type": given.type}
        schema = given.model_dump(by_alias=True, exclude={"type"}, exclude_none=True)
        return {"type": "json_schema", "json_schema": schema}


def _add(messages: list[dict[str, Any]], item: dict[str, Any]) -> None:
    """One more item. What belongs to one turn of the assistant is put into one."""
    match item.get("type", "message"):
        case "message":
            role = item["role"]
            message = {"role": role, "content": _content(item["content"])}
            if role == "assistant":
                _open_turn(messages, message)
            else:
                messages.append(message)
        case "function_call":
            function = {"name": item["name"], "arguments": item["arguments"]}
            turn = _open_turn(messages, {"role": "assistant"})
            turn.setdefault("tool_calls", []).append({"id": item["call_id"], "type": "function", "function": function})
        case "function_call_output":
            output = _content(item["output"])
            messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": output})
        case "reasoning":
            texts = [part["text"] for part in item.get("content") or [] if part.get("type") == "reasoning_text"]
            if texts:
                messages.append({"role": "assistant", "reasoning_content": "".join(texts)})
        case kind:
            raise ValueError(f"the type {str(kind)[:40]!r} is not read here")


def _open_turn(messages: list[dict[str, Any]], turn: dict[str, Any]) -> dict[str, Any]:
    """The assistant's turn at the end, with what is new in `turn`; a new one where there is none to go on with."""
    last = messages[-1] if messages else {"role": None}
    if last["role"] == "assistant" and not ("content" in turn and ("content" in last or "tool_calls" in last)):
        last |= turn
        return last
    messages.append(turn)
    return turn


def _content(content: Any) -> Any:
    """Parts by the names that chat completions have for them."""
    if not isinstance(content, list):
        return content
    names = {"input_text": "text", "output_text": "text", "text": "text"}
    parts: list[Any] = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in names:
            parts.append({"type": "text", "text": part.get("text")})
        else:
            parts.append(part)
    return parts
