"""From a row to what the model is asked: `{column}` fields, or a Jinja template in a sandbox. Knows nothing of models.

One column is the document: a text that must not be empty, and that may be asked about in parts when it is too long.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from conch_build.errors import InputError
from conch_build.extras import require

_FIELD = re.compile(r"\{(\w+)\}")
_JINJA = re.compile(r"\{\{|\{%|\{#")


class RowError(InputError):
    """This row cannot be answered."""


class Prompt:
    def __init__(self, template: str, columns: Sequence[str], document: str | None = None) -> None:
        """`document`: default: `text`, where the template has it, else the first column that it has.

        Raises InputError for a template that is none, and for columns that are not there.
        """
        self._template = template
        self._jinja = _compiled(template) if _JINJA.search(template) else None
        used = _jinja_names(template) if self._jinja else list(dict.fromkeys(_FIELD.findall(template)))
        self.document = document or ("text" if "text" in used else next(iter(used), ""))
        if self.document not in used:
            fix = "Name a column of the input, as {text}."
            raise InputError(f"the prompt has no column {self.document!r}", where="--prompt", fix=fix)
        if missing := [name for name in used if name not in columns]:
            fix = f"The input has: {', '.join(columns)}."
            raise InputError(f"there is no column {missing[0]!r}", where="--prompt", fix=fix)
        self._used = used

    def render(self, columns: Mapping[str, Any]) -> str:
        """Raises RowError for a row that lacks something."""
        for name in self._used:
            if columns.get(name) is None:
                raise RowError(f"it has no {name!r}")
        document = columns[self.document]
        if not isinstance(document, str):
            raise RowError(f"{self.document!r} is not a text")
        if not document.strip():
            raise RowError(f"{self.document!r} is empty")
        if self._jinja is None:
            return _FIELD.sub(lambda field: str(columns[field[1]]), self._template)
        try:
            return str(self._jinja.render(dict(columns)))
        except Exception as error:  # whatever a template comes to with this row
            raise RowError(f"the prompt's template fails: {error}") from None


def _compiled(template: str) -> Any:
    require("a Jinja prompt", "batch", "jinja2")
    from jinja2 import StrictUndefined, TemplateSyntaxError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    try:
        return ImmutableSandboxedEnvironment(undefined=StrictUndefined).from_string(template)
    except TemplateSyntaxError as error:
        raise InputError(f"line {error.lineno}: {error.message}", where="--prompt") from None


def _jinja_names(template: str) -> list[str]:
    from jinja2 import Environment, meta

    names = meta.find_undeclared_variables(Environment(autoescape=True).parse(template))
    return sorted(names, key=template.index)
