"""A task file: questions with what a right answer is, a JSON object a line. Knows no model.

{"prompt": "The capital of France is", "reference": "Paris"}
{"messages": [{"role": "user", "content": "2+2?"}], "answers": ["4", "four"], "max_tokens": 8}
{"prompt": "A person as JSON:", "schema": {"type": "object", ...}}
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from conch_build.errors import InputError

FIX = 'A line is {"prompt": "..."} or {"messages": [...]}, with "reference", "answers" or "schema".'


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class Message(_Strict):
    role: Literal["system", "user", "assistant"]
    content: str


class Task(_Strict):
    """One question. `answers`: each of them is right; `reference` is one answer, written shorter."""

    prompt: str | None = None
    """To be continued as it is."""
    messages: Annotated[tuple[Message, ...], Field(min_length=1)] | None = None
    """To be answered through the chat template."""
    answers: tuple[str, ...] = ()
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    """The answer is guided by it and must satisfy it."""
    max_tokens: Annotated[int, Field(ge=1)] = 64
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """The answer ends before the first of these, as lm-eval's `until`."""

    @model_validator(mode="before")
    @classmethod
    def _one_reference(cls, data: Any) -> Any:
        if isinstance(data, dict) and "reference" in data:
            if "answers" in data:
                raise ValueError("has both `reference` and `answers`")
            data = {**data, "answers": [data["reference"]]}
            del data["reference"]
        return data

    @model_validator(mode="after")
    def _whole(self) -> Task:
        if bool(self.prompt) == bool(self.messages):
            raise ValueError("has neither or both of `prompt` and `messages`")
        return self

    @property
    def question(self) -> str:
        """What was asked last, as a person reads it."""
        return self.prompt or (self.messages[-1].content if self.messages else "")


BUILTIN = tuple(
    Task.model_validate({"messages": [{"role": "user", "content": question}], "max_tokens": 48})
    for question in (
        "What is the capital of France?",
        "Explain in one sentence why the sky is blue.",
        "Write a Python function that reverses a string.",
        "List three things to pack for a day at the sea.",
    )
)
"""Shown side by side where there is no task file; they have no right answers."""


def load_tasks(path: str) -> tuple[Task, ...]:
    """The tasks of a file. Raises InputError naming the line that is wrong, or when there are none."""
    try:
        content = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InputError(f"cannot be read: {reason}", where=path, fix="Correct the path or the file.") from None
    lines = [(number, line) for number, line in enumerate(content.split("\n"), 1) if line.strip()]
    if not lines:
        raise InputError("holds no tasks", where=path, fix=FIX)
    return tuple(_task(line, f"{path}, line {number}") for number, line in lines)


def dump_tasks(tasks: Sequence[Task]) -> list[dict[str, Any]]:
    """The tasks as JSON values: what decides the answers to them."""
    return [task.model_dump(mode="json", by_alias=True, exclude_defaults=True) for task in tasks]


_TASK = TypeAdapter(Task)


def _task(line: str, where: str) -> Task:
    try:
        return _TASK.validate_json(line)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"]))
        said = first["msg"].removeprefix("Value error, ")
        raise InputError(f"`{key}`: {said}" if key else said, where=where, fix=FIX) from None
