"""The bodies of OpenAI's endpoints, with OpenAI's names, and vLLM's names for what goes beyond them.

What is not listed here is refused by name. Taken but without effect: `user`, `metadata`, `safety_identifier`
and `prompt_cache_key`, which only label a request.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

# Parameters that the API has and this server has not -> the values that ask for nothing.
UNDONE: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "store": (False,),
    "service_tier": ("auto", "default"),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "use_beam_search": (False,),
    "length_penalty": (1,),
    "prompt_logprobs": (),
    "priority": (0,),
}
UNDONE_CHAT: dict[str, tuple[Any, ...]] = {
    **UNDONE,
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "reasoning_effort": (),
    "verbosity": (),
    "web_search_options": (),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "echo": (False,),
}
UNDONE_COMPLETION: dict[str, tuple[Any, ...]] = {**UNDONE, "echo": (False,), "suffix": ("",)}


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        return {name: value for name, value in data.items() if value is not None}


class StreamOptions(_Part):
    include_usage: bool = False


class FunctionCall(_Part):
    name: str
    arguments: str | dict[str, Any] = ""


class ToolCall(_Part):
    id: str = ""
    type: Literal["function"] = "function"
    function: FunctionCall
    index: int = 0


class Message(_Part):
    """One turn. A list of text parts is joined with nothing between; `developer` is the same as `system`."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | None = None
    """A text, or a list of text parts."""
    name: str | None = None
    refusal: str | None = None
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


class Generation(_Part):
    """What chat and text completions have in common."""

    model: str | None = None
    """Absent: the model that this gateway serves."""
    max_tokens: int | None = Field(None, ge=1)
    """Absent: what fits into the model's context."""
    stream: bool = False
    stream_options: StreamOptions | None = None
    temperature: float = Field(1.0, ge=0, le=2)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=-1)
    """0 or -1: off."""
    min_p: float = Field(0.0, ge=0, le=1)
    repetition_penalty: float = Field(1.0, ge=0.01, le=10)
    presence_penalty: float = Field(0.0, ge=-2, le=2)
    frequency_penalty: float = Field(0.0, ge=-2, le=2)
    seed: int | None = Field(None, ge=-(2**63), le=2**63 - 1)
    stop: list[str] = []
    """One text or a list of them."""
    stop_token_ids: list[int] = []
    """Ids that end the answer besides the model's own; they are not part of it."""
    min_tokens: int = Field(0, ge=0)
    """Before that many tokens neither an end token nor a stop string ends the answer."""
    ignore_eos: bool = False
    logit_bias: dict[str, Any] = {}
    """Token id -> -100 to 100, added to the token's logit."""
    user: str | None = None
    metadata: dict[str, str] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    @field_validator("stop", mode="before")
    @classmethod
    def _stops(cls, stop: Any) -> Any:
        stops = [stop] if isinstance(stop, str) else stop
        if isinstance(stops, list) and "" in stops:
            raise ValueError("an empty text cannot be a stop")
        return stops

    @property
    def includes_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage


class ChatRequest(Generation):
    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    """The newer name of `max_tokens`; it wins over it."""
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=20)


class CompletionRequest(Generation):
    prompt: Any
    """A text, a list of texts, a list of token ids, or a list of such lists: one choice for each."""
    logprobs: int | None = Field(None, ge=0, le=5)

    @field_validator("prompt", mode="after")
    @classmethod
    def _prompts(cls, prompt: Any) -> list[str | list[int]]:
        """Always a list of prompts. The item that is wrong is named."""
        if isinstance(prompt, str) or (isinstance(prompt, list) and prompt and all(map(_is_id, prompt))):
            prompt = [prompt]
        if not isinstance(prompt, list) or not prompt:
            raise ValueError("must be a text, token ids, or a list of one of them")
        for index, item in enumerate(prompt):
            if not isinstance(item, str) and not (isinstance(item, list) and all(map(_is_id, item))):
                raise ValueError(f"item {index} must be a text or a list of token ids")
            if not item:
                raise ValueError(f"item {index} is empty")
        return prompt


def _is_id(item: Any) -> bool:
    return isinstance(item, int) and not isinstance(item, bool)


def _non_empty(parts: list[Any]) -> list[Any]:
    if not parts:
        raise ValueError("`content` is an empty list")
    return parts


def _text_of(part: Any) -> str:
    if not isinstance(part, dict) or part.get("type") != "text":
        raise ValueError("a part of `content` must be {'type': 'text', 'text': ...}: this model reads text only")
    if part.keys() != {"type", "text"} or not isinstance(part["text"], str):
        raise ValueError("a text part has exactly `type` and `text`")
    return str(part["text"])
