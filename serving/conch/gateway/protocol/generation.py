"""What chat and text completions have in common."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, WithJsonSchema, field_validator

from conch.gateway.protocol.base import Label, Metadata, Part
from conch.gateway.protocol.guided import ResponseFormat, Schema, StructuredOutputs

# Parameters that the API has and this server has not -> the values that ask for nothing.
UNDONE: dict[str, tuple[Any, ...]] = {
    "store": (False,),
    "use_beam_search": (False,),
    "length_penalty": (1,),
    "include_stop_str_in_output": (False,),
    "spaces_between_special_tokens": (True,),
    "guided_decoding_backend": (),
    "guided_whitespace_pattern": (),
    "return_token_ids": (False,),
    "prompt_cache_options": (),
    "prompt_cache_retention": ("in_memory",),
    "moderation": (),
}


_TEXT = {"type": "string", "minLength": 1}


class StreamOptions(Part):
    include_usage: bool = False
    continuous_usage_stats: bool = False
    """With `include_usage`: every chunk has the usage so far, as with vLLM."""
    include_obfuscation: Literal[False] = False


class Generation(Part):
    """What chat and text completions have in common."""

    model: str | None = Field(None, max_length=256)
    """Absent: the model that this gateway serves."""
    max_tokens: int | None = Field(None, ge=1)
    """Absent: what fits into the model's context."""
    n: int = Field(1, ge=1)
    """Answers to each prompt; the prompt is computed once."""
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
    stop: Annotated[list[str], WithJsonSchema({"anyOf": [_TEXT, {"type": "array", "items": _TEXT}]})] = Field(
        default_factory=list
    )
    """One text or a list of them."""
    stop_token_ids: list[int] = Field(default_factory=list)
    """Ids that end the answer besides the model's own; they are not part of it."""
    min_tokens: int = Field(0, ge=0)
    """Before that many tokens neither an end token nor a stop string ends the answer."""
    ignore_eos: bool = False
    bad_words: list[str] = Field(default_factory=list)
    """Texts that the answer must not hold, at its start or after a space."""
    logit_bias: dict[str, Any] = Field(default_factory=dict)
    """Token id -> -100 to 100, added to the token's logit."""
    skip_special_tokens: bool = True
    truncate_prompt_tokens: int | None = Field(None, ge=1)
    """Only so many tokens at the end of the prompt are used."""
    prompt_logprobs: int | None = Field(None, ge=0, le=20)
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Schema | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = Field(None, min_length=1)
    guided_grammar: str | None = None
    priority: int = Field(0, ge=-1000, le=1000)
    """Lower goes first, as with vLLM."""
    service_tier: Literal["auto", "default", "flex", "priority", "fast"] = "auto"
    """`priority` (or `fast`) goes before, `flex` after everybody else; the answer names the tier it had."""
    timeout: float | None = Field(None, gt=0, le=1e6)
    """Seconds that the request may take, where that is less than the server's own limit."""
    user: Label | None = None
    metadata: Metadata | None = None
    safety_identifier: Label | None = None
    prompt_cache_key: Label | None = None

    @field_validator("stop", mode="before")
    @classmethod
    def _stops(cls, stop: Any) -> Any:
        stops = [stop] if isinstance(stop, str) else stop
        if isinstance(stops, list) and "" in stops:
            raise ValueError("an empty text cannot be a stop")
        return stops

    @field_validator("bad_words")
    @classmethod
    def _bad_words(cls, words: list[str]) -> list[str]:
        if "" in words:
            raise ValueError("an empty text cannot be a bad word")
        return words

    @property
    def tier(self) -> str:
        """The tier that it is served in."""
        return {"auto": "default", "fast": "priority"}.get(self.service_tier, self.service_tier)

    @property
    def includes_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def tells_usage(self) -> bool:
        """In every chunk."""
        return self.includes_usage and self.stream_options is not None and self.stream_options.continuous_usage_stats
