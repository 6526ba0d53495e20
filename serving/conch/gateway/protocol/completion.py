"""The body of /v1/completions."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, WithJsonSchema, field_validator, model_validator

from conch.gateway.protocol.generation import UNDONE, Generation

UNDONE_COMPLETION: dict[str, tuple[Any, ...]] = {**UNDONE, "suffix": ("",)}


def _many(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "minItems": 1, "items": items}


_TEXT = {"type": "string", "minLength": 1}
_IDS = _many({"type": "integer", "minimum": 0})


class CompletionRequest(Generation):
    prompt: Annotated[Any, WithJsonSchema({"anyOf": [_TEXT, _IDS, _many(_TEXT), _many(_IDS)]})]
    """A text, a list of texts, a list of token ids, or a list of such lists: `n` choices for each."""
    max_tokens: int | None = Field(None, ge=0)
    """0, with `echo`: only the prompt."""
    logprobs: int | None = Field(None, ge=0, le=5)
    echo: bool = False
    """The prompt is part of the answer, and with `logprobs` its log probabilities are."""
    best_of: int | None = Field(None, ge=1)
    """So many are generated, of which the `n` likeliest are given; not streamed."""
    add_special_tokens: bool = True
    """What the tokenizer itself puts around a text."""

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

    @model_validator(mode="after")
    def _consistent(self) -> CompletionRequest:
        if self.max_tokens == 0 and not self.echo:
            raise ValueError("`max_tokens` is 0: only with `echo`")
        if self.best_of is not None and self.best_of < self.n:
            raise ValueError("`best_of` is less than `n`")
        if self.best_of is not None and self.best_of > self.n and self.stream:
            raise ValueError("`best_of` cannot be streamed: which answers are best shows at their end")
        if self.echo and self.logprobs is not None and self.stream and self.n > 1:
            raise ValueError("`echo` with `logprobs` cannot be streamed for several choices")
        return self


def _is_id(item: Any) -> bool:
    return isinstance(item, int) and not isinstance(item, bool)
