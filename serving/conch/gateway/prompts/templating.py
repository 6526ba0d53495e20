"""Messages to the prompt that the model was trained on, through its chat template. Knows nothing of HTTP.

The template writes one text and the tokenizer reads it whole, as everywhere with Hugging Face templates: a
special token spelled out in a message (`<|im_end|>`) is that token. Who passes on the words of strangers and
relies on roles must take such spellings out first.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from conch.gateway.calls import told
from conch.gateway.prompts.dialect import Dialect
from conch.gateway.prompts.tokenizer import Tokenizer
from conch.gateway.protocol import ChatRequest, Message, Tool
from conch_build.errors import RequestError, UnsupportedError


@dataclass(frozen=True)
class Prompt:
    ids: list[int]
    reasons: bool
    """It ends with the mark that opens reasoning."""


def chat_prompt(
    body: ChatRequest, tools: Sequence[Tool], tokenizer: Tokenizer, dialect: Dialect, *, reasoning: bool = True
) -> Prompt:
    """The prompt's token ids. The template writes the start token, so the tokenizer must not add another.

    `tools` are those that the model is told of. Without `reasoning`, what the template opens is closed again.
    Raises RequestError when the template refuses the messages.
    """
    if tokenizer.hf.chat_template is None:
        raise RequestError("The model has no chat template; use /v1/completions", param="messages")
    turns = [_turn(message) for message in body.messages]
    shown = [tool.model_dump(exclude_none=True, exclude_defaults=True) for tool in tools]
    if not dialect.shows_tools:
        turns = told.with_tools(turns, shown, dialect.markup)
    variables = _variables(body, dialect)
    try:
        text: str = tokenizer.hf.apply_chat_template(
            turns,
            tools=shown if shown and dialect.shows_tools else None,
            tokenize=False,
            add_generation_prompt=body.add_generation_prompt and not body.continue_final_message,
            continue_final_message=body.continue_final_message,
            **variables,
        )
    except Exception as error:
        if _is_from_template(error):
            text = f"The model's chat template refuses these messages: {str(error)[:200]}"
        else:
            text = "The model's chat template cannot render these messages"
        raise RequestError(text, param="messages", code="invalid_messages") from None
    marks = dialect.marks
    reasons = marks is not None and text.rstrip().endswith(marks.opening)
    if marks is not None and reasons and not reasoning:
        text, reasons = f"{text.rstrip()}\n{marks.closing}\n\n", False
    return Prompt(tokenizer.encode(text, special=False), reasons)


def _variables(body: ChatRequest, dialect: Dialect) -> dict[str, Any]:
    """What the request sets in the template. Raises RequestError for what the template does not have."""
    given: dict[str, Any] = dict(body.chat_template_kwargs)
    if unknown := given.keys() - dialect.variables:
        known = f"; it has {', '.join(sorted(dialect.variables))}" if dialect.variables else ""
        text = f"Invalid value for 'chat_template_kwargs': the model's template has no {sorted(unknown)[0]!r}{known}"
        raise RequestError(text, param="chat_template_kwargs", code="invalid_value")
    effort = body.reasoning_effort
    if effort is None or (effort == "none" and dialect.marks is None):
        return given
    if "reasoning_effort" in dialect.variables:
        return {"reasoning_effort": effort, **given}
    for switch in ("enable_thinking", "thinking"):
        if switch in dialect.variables:
            return {switch: effort != "none", **given}
    text = f"Unsupported value for 'reasoning_effort': the model's template has no way to ask for {effort!r}"
    raise UnsupportedError(text, param="reasoning_effort", code="unsupported_value")


def _is_from_template(error: Exception) -> bool:
    """Whether the template itself spoke (`raise_exception("...")`), in words that are meant to be read."""
    from jinja2 import TemplateError, UndefinedError

    return isinstance(error, TemplateError) and not isinstance(error, UndefinedError)


def _turn(message: Message) -> dict[str, Any]:
    """A turn as templates want it: text content always, `developer` under its older name."""
    turn: dict[str, Any] = {
        "role": "system" if message.role == "developer" else message.role,
        "content": message.content or "",
    }
    if message.tool_calls:
        turn["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.function.name, "arguments": _arguments(call.function.arguments)},
            }
            for call in message.tool_calls
        ]
    optional = {
        "tool_call_id": message.tool_call_id,
        "name": message.name,
        "reasoning_content": message.reasoning_content or message.reasoning,
    }
    return turn | {name: value for name, value in optional.items() if value is not None}


def _arguments(arguments: str | dict[str, Any]) -> str | dict[str, Any]:
    """Templates print an object; what a model once wrote that is none goes back as it was written."""
    if isinstance(arguments, dict):
        return arguments
    try:
        parsed = json.loads(arguments)
    except ValueError:
        return arguments
    return parsed if isinstance(parsed, dict) else arguments
