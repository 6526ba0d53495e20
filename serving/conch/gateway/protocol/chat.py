"""The body of /v1/chat/completions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, WithJsonSchema, field_validator, model_validator

from conch.gateway.protocol.generation import UNDONE, Generation
from conch.gateway.protocol.messages import Message
from conch.gateway.protocol.tools import TOOL_CHOICE_SCHEMA, Tool, ToolChoice, tool_choice_of

UNDONE_CHAT: dict[str, tuple[Any, ...]] = {
    **UNDONE,
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "verbosity": ("medium",),
    "web_search_options": (),
    "chat_template": (),
    "echo": (False,),
    "best_of": (1,),
}


class ChatRequest(Generation):
    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    """The newer name of `max_tokens`; it wins over it."""
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=20)
    tools: list[Tool] = Field(default_factory=list)
    tool_choice: Annotated[ToolChoice, WithJsonSchema(TOOL_CHOICE_SCHEMA)] = ToolChoice(mode="auto")
    """none, auto, required, or the function that must be called."""
    parallel_tool_calls: bool = True
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    """For models whose template has it."""
    chat_template_kwargs: dict[str, bool | int | str] = Field(default_factory=dict)
    """Variables of the chat template."""
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    """The answer goes on where the last message ends."""

    @field_validator("tool_choice", mode="before")
    @classmethod
    def _choice(cls, given: Any) -> Any:
        return ToolChoice(**tool_choice_of(given))

    @property
    def wants_parallel_calls(self) -> bool:
        """Whether it says so, and does not only leave it at that."""
        return self.parallel_tool_calls and "parallel_tool_calls" in self.model_fields_set

    @model_validator(mode="after")
    def _complete(self) -> ChatRequest:
        known = [tool.function.name for tool in self.tools]
        if len(set(known)) < len(known):
            raise ValueError("`tools` has two functions of one name")
        if self.tool_choice.mode == "required" and not known:
            raise ValueError("`tool_choice` asks for a call, but there are no `tools`")
        if missing := set(self.tool_choice.names or ()) - set(known):
            raise ValueError(f"`tool_choice` names {sorted(missing)[0]!r}, which is not among the `tools`")
        if (
            self.continue_final_message
            and self.add_generation_prompt
            and "add_generation_prompt" in self.model_fields_set
        ):
            raise ValueError("`continue_final_message` excludes `add_generation_prompt`")
        return self
