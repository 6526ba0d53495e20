"""Messages to the prompt that the model was trained on, through its chat template. Knows nothing of HTTP.

The template writes one text and the tokenizer reads it whole, as everywhere with Hugging Face templates: a
special token spelled out in a message (`<|im_end|>`) is that token. Who passes on the words of strangers and
relies on roles must take such spellings out first.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from conch.gateway.protocol import Message
from conch.gateway.tokenizer import Tokenizer
from conch_build.errors import RequestError


def chat_prompt(messages: Sequence[Message], tokenizer: Tokenizer) -> list[int]:
    """The prompt's token ids. The template writes the start token, so the tokenizer must not add another.

    Raises RequestError when the template refuses the messages.
    """
    if tokenizer.hf.chat_template is None:
        raise RequestError("The model has no chat template; use /v1/completions", param="messages")
    try:
        text = tokenizer.hf.apply_chat_template(
            [_turn(message) for message in messages], tokenize=False, add_generation_prompt=True
        )
    except Exception as error:
        if _is_from_template(error):
            text = f"The model's chat template refuses these messages: {str(error)[:200]}"
        else:
            text = "The model's chat template cannot render these messages"
        raise RequestError(text, param="messages", code="invalid_messages") from None
    return tokenizer.encode(text, special=False)


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
    if message.tool_call_id is not None:
        turn["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        turn["name"] = message.name
    return turn


def _arguments(arguments: str | dict[str, Any]) -> str | dict[str, Any]:
    """Templates print an object; what a model once wrote that is none goes back as it was written."""
    if isinstance(arguments, dict):
        return arguments
    try:
        parsed = json.loads(arguments)
    except ValueError:
        return arguments
    return parsed if isinstance(parsed, dict) else arguments
