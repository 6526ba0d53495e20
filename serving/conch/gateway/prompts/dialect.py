"""What a model's chat template says of its habits: how it calls tools, how it reasons, what may be set in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from conch.gateway.answers.reasoning import MARKS, Marks
from conch.gateway.calls.markup import HERMES, MARKUPS, Markup, markup_of
from conch_build.errors import SetupError

_OURS = frozenset({"messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token"})


@dataclass(frozen=True)
class Dialect:
    markup: Markup
    """How calls are written."""
    shows_tools: bool
    """The template tells the model of its tools, and of calls made before; if not, the gateway does."""
    marks: Marks | None
    """What stands around reasoning; None: the model has none."""
    variables: frozenset[str]
    """What a request may set in the template."""

    @classmethod
    def of(cls, template: str | Mapping[str, str] | None, tool_format: str = "auto") -> Dialect:
        """`tool_format`: `auto`, or the name of a markup. Raises SetupError for another name."""
        text = template or ""
        text = "\n".join(text.values()) if isinstance(text, Mapping) else text
        if tool_format not in ("auto", *MARKUPS):
            known = ", ".join(("auto", *MARKUPS))
            raise SetupError(f"no tool format is called {tool_format!r}", fix=f"There are {known}.")
        own = MARKUPS.get(tool_format) or markup_of(text)
        variables = _variables(text)
        return cls(
            markup=own or HERMES,
            shows_tools=own is not None and "tools" in variables,
            marks=next((marks for marks in MARKS if marks.closing in text), None),
            variables=variables - _OURS,
        )

    @property
    def markers(self) -> frozenset[str]:
        """Texts that may be special tokens of the model, and must be seen in its answers."""
        marks = (self.marks.opening, self.marks.closing) if self.marks else ()
        return frozenset((*self.markup.markers, *marks))


def _variables(template: str) -> frozenset[str]:
    from jinja2 import Environment, TemplateError, meta

    # What transformers gives its templates beside variables is declared, so that it is not taken for one.
    environment = Environment(extensions=["jinja2.ext.loopcontrols"])
    try:
        parsed: Any = environment.parse(template.replace("{% generation %}", "").replace("{% endgeneration %}", ""))
    except TemplateError:
        return frozenset()
    return frozenset(meta.find_undeclared_variables(parsed)) - {"raise_exception", "strftime_now"}
