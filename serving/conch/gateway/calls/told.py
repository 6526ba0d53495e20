"""A conversation with tools for a template that knows of none: they are told of in the system turn.

Calls that the model made are written into its turns as it would write them, and what tools answered comes as turns of
the user. This is what Hermes and Qwen were trained on; other models understand it more or less.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from conch.gateway.calls.markup import Markup

_TOLD = """You may call functions to answer. They are, as JSON:
{functions}
To call one, write only this, once for each call:
{example}
What it returns is then shown to you between <tool_response> and </tool_response>."""


def with_tools(
    turns: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]], markup: Markup
) -> list[dict[str, Any]]:
    """The turns with nothing in them but texts of system, user and assistant, where tools are concerned."""
    told = [_plain(turn, markup) for turn in turns]
    if not tools:
        return told
    functions = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    text = _TOLD.format(functions=functions, example=_written("NAME", "{...}", markup))
    if told[0]["role"] == "system":
        return [{**told[0], "content": f"{told[0]['content']}\n\n{text}".lstrip()}, *told[1:]]
    return [{"role": "system", "content": text}, *told]


def _plain(turn: dict[str, Any], markup: Markup) -> dict[str, Any]:
    if turn["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{turn['content']}\n</tool_response>"}
    if not turn.get("tool_calls"):
        return turn
    calls = (call["function"] for call in turn["tool_calls"])
    texts = [_written(call["name"], _json(call["arguments"]), markup) for call in calls]
    text = markup.between.join(texts)
    if markup.around:
        text = text.join(markup.around)
    return {"role": "assistant", "content": "\n".join(filter(None, (turn["content"], text)))}


def _json(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _written(name: str, arguments: str, markup: Markup) -> str:
    return f"{markup.begin_of(name)}{arguments}{markup.end}"
