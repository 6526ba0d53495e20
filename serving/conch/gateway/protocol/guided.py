"""The ways to say what an answer must be: OpenAI's `response_format`, vLLM's `structured_outputs`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from conch.gateway.protocol.base import Part

Schema = dict[str, Any] | bool


class JsonSchema(Part):
    name: str = Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")
    description: str | None = None
    schema_: Schema = Field(default_factory=dict, alias="schema")
    strict: bool = False
    """Enforced in either case."""


class ResponseFormat(Part):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _complete(self) -> ResponseFormat:
        if (self.json_schema is None) == (self.type == "json_schema"):
            raise ValueError("`json_schema` is needed with the type 'json_schema', and only with it")
        return self


class StructuredOutputs(Part):
    """vLLM's name; exactly one of them."""

    json_: Schema | str | None = Field(None, alias="json")
    """A JSON schema, or its text."""
    regex: str | None = None
    choice: list[str] | None = Field(None, min_length=1)
    grammar: str | None = None
    """EBNF with a rule `root`."""
    json_object: bool | None = None
    structural_tag: str | None = None

    @model_validator(mode="after")
    def _one(self) -> StructuredOutputs:
        if len(self.model_fields_set) != 1:
            raise ValueError(
                "needs exactly one of `json`, `regex`, `choice`, `grammar`, `json_object`, `structural_tag`"
            )
        return self
