"""What an answer must be, as the engine is told it: from `response_format`, `structured_outputs`, `guided_*`, tools."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from conch.gateway.protocol import Generation
from conch_build.errors import RequestError

ENGINE_PARAM = "guided_decoding_guide"


@dataclass(frozen=True)
class Guide:
    """A kind of guide and its text, in the words of Triton's tensors."""

    kind: str
    text: str
    param: str
    """The parameter of the request that it comes from."""

    @property
    def tensors(self) -> tuple[str, str]:
        return self.kind, self.text

    @property
    def format(self) -> dict[str, Any]:
        """The same as part of a structural tag. Only for schemas."""
        return {"type": "json_schema", "json_schema": json.loads(self.text)}


def tagged(form: dict[str, Any], param: str) -> Guide:
    """A format of structural tags as a guide."""
    return Guide("structural_tag", json.dumps({"type": "structural_tag", "format": form}), param)


def guide_of(body: Generation) -> Guide | None:
    """The guide that a request asks for, tools aside. Raises RequestError when it asks for two."""
    guides = [guide for guide in (_format(body), _structured(body), *_guided(body)) if guide]
    if len(guides) > 1:
        text = f"'{guides[1].param}' cannot be combined with '{guides[0].param}': an answer follows one of them"
        raise RequestError(text, param=guides[1].param, code="invalid_value")
    return guides[0] if guides else None


@contextmanager
def blamed(guide: Guide | None) -> Iterator[None]:
    """What the engine says of a guide is said of the parameter that it came from."""
    try:
        yield
    except RequestError as error:
        if guide is None or error.param not in (ENGINE_PARAM, f"{ENGINE_PARAM}_type"):
            raise
        said = error.what.replace("`", "").removeprefix(f"{error.param}: ").removeprefix(f"{error.param} ")
        text = f"Invalid value for '{guide.param}': {said}"
        raise RequestError(text, param=guide.param, code=error.code) from None


def _format(body: Generation) -> Guide | None:
    form = body.response_format
    if form is None or form.type == "text":
        return None
    if form.json_schema is None:
        return _json({"type": "object"}, "response_format")
    return _json(form.json_schema.schema_, "response_format")


def _structured(body: Generation) -> Guide | None:
    given = body.structured_outputs
    if given is None or given.json_object is False:
        return None
    param = "structured_outputs"
    if given.json_ is not None:
        return _json(given.json_, param)
    if given.choice is not None:
        return Guide("choice", json.dumps(given.choice), param)
    for kind, text in (
        ("regex", given.regex),
        ("ebnf_grammar", given.grammar),
        ("structural_tag", given.structural_tag),
    ):
        if text is not None:
            return Guide(kind, text, param)
    return _json({"type": "object"}, param)


def _guided(body: Generation) -> Iterator[Guide]:
    if body.guided_json is not None:
        yield _json(body.guided_json, "guided_json")
    if body.guided_regex is not None:
        yield Guide("regex", body.guided_regex, "guided_regex")
    if body.guided_choice is not None:
        yield Guide("choice", json.dumps(body.guided_choice), "guided_choice")
    if body.guided_grammar is not None:
        yield Guide("ebnf_grammar", body.guided_grammar, "guided_grammar")


def _json(schema: Any, param: str) -> Guide:
    return Guide("json_schema", schema if isinstance(schema, str) else json.dumps(schema), param)
