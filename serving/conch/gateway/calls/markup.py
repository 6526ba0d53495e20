"""How a model writes calls of tools. Which way is its own shows in its chat template."""

from __future__ import annotations

import json
from dataclasses import dataclass


@dataclass(frozen=True)
class Markup:
    """`opening` BEGIN arguments END `between` BEGIN arguments END ..."""

    name: str
    opening: str
    """What tells a call from text; empty: an answer that begins with `{` is one."""
    begin: str
    """What stands before the arguments; NAME is the function's name, QUOTED the same in quotes."""
    end: str
    between: str
    around: tuple[str, str] | None = None
    """What stands around all calls together."""
    closing: str = ""
    """What ends a call beyond its JSON."""
    id_length: int | None = None
    """Ids of calls are this many letters and digits; None: as OpenAI has them."""

    def begin_of(self, name: str) -> str:
        return self.begin.replace("QUOTED", json.dumps(name)).replace("NAME", name)

    @property
    def markers(self) -> tuple[str, ...]:
        """What may be a special token, and must be seen in the text of an answer."""
        return tuple(filter(None, (self.opening, self.closing, "[ARGS]", "[CALL_ID]", "<|python_tag|>")))


HERMES = Markup(
    "hermes",
    opening="<tool_call>",
    begin='<tool_call>\n{"name": QUOTED, "arguments": ',
    end="}\n</tool_call>",
    between="\n",
    closing="</tool_call>",
)
LLAMA = Markup("llama3_json", opening="", begin='{"name": QUOTED, "parameters": ', end="}", between="; ")
MISTRAL = Markup(
    "mistral",
    opening="[TOOL_CALLS]",
    begin='{"name": QUOTED, "arguments": ',
    end="}",
    between=", ",
    around=("[TOOL_CALLS][", "]"),
    id_length=9,
)
MISTRAL_ARGS = Markup(
    "mistral_args", opening="[TOOL_CALLS]", begin="[TOOL_CALLS]NAME[ARGS]", end="", between="", id_length=9
)
MARKUPS = {markup.name: markup for markup in (HERMES, LLAMA, MISTRAL, MISTRAL_ARGS)}


def markup_of(template: str) -> Markup | None:
    """The way of writing that a chat template teaches; None: it shows none that is known."""
    if "<tool_call>" in template:
        return HERMES
    if "[TOOL_CALLS]" in template:
        return MISTRAL_ARGS if "[ARGS]" in template else MISTRAL
    if "<|python_tag|>" in template or '"parameters"' in template:
        return LLAMA
    return None
