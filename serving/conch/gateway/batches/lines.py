"""The lines of a batch's input file: read a few at a time, and checked before the first of them runs.

Blank lines count as lines and ask for nothing. Knows nothing of engines, nor of who asks.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conch.gateway.body import parse_body
from conch.gateway.protocol import UNDONE_CHAT, UNDONE_COMPLETION, ChatRequest, CompletionRequest
from conch.gateway.protocol.base import Part
from conch.gateway.protocol.responses import UNDONE_RESPONSES, ResponsesRequest
from conch_build.errors import RequestError

ENDPOINTS: dict[str, tuple[type[Part], Mapping[str, tuple[Any, ...]]]] = {
    "/v1/chat/completions": (ChatRequest, UNDONE_CHAT),
    "/v1/completions": (CompletionRequest, UNDONE_COMPLETION),
    "/v1/responses": (ResponsesRequest, UNDONE_RESPONSES),
}
TIERS = ("auto", "default", "flex")
"""Service tiers that a line may ask for: it is served in the last one."""
MOST_FINDINGS = 1000
_TOGETHER_BYTES = 1 << 20
_TOGETHER_LINES = 64
_ID_CHARS = 512


class _Line(Part):
    custom_id: str
    method: str
    url: str
    body: dict[str, Any]


@dataclass(frozen=True)
class Line:
    number: int
    """From 1."""
    raw: bytes

    def parsed(self) -> tuple[str, dict[str, Any]]:
        """Its custom id and body; of a line that was checked."""
        data = json.loads(self.raw)
        return data["custom_id"], data["body"]


@dataclass
class Checked:
    """What an input file is found to be."""

    total: int = 0
    findings: list[dict[str, Any]] = field(default_factory=list)
    """One for each bad line, as OpenAI's batch errors."""
    models: set[str | None] = field(default_factory=set)
    ids: dict[str, int] = field(default_factory=dict)
    """Custom ids with the lines that they stand in."""

    def found(self, code: str, message: str, line: int | None = None, param: str | None = None) -> None:
        if len(self.findings) < MOST_FINDINGS:
            self.findings.append({"code": code, "line": line, "message": message, "param": param})


def read(path: Path, line_bytes: int) -> Iterator[list[Line]]:
    """The lines that are not blank, about a MiB of them together. Of one over `line_bytes` there is only the start.

    Raises OSError.
    """
    together: list[Line] = []
    size = number = 0
    with path.open("rb") as file:
        while raw := file.readline(line_bytes + 1):
            number += 1
            rest = raw
            while len(rest) > line_bytes and not rest.endswith(b"\n"):
                rest = file.readline(line_bytes + 1)
            raw = raw.removeprefix(codecs.BOM_UTF8) if number == 1 else raw
            if raw.strip():
                together.append(Line(number, raw))
                size += len(raw)
            if size >= _TOGETHER_BYTES or len(together) >= _TOGETHER_LINES:
                yield together
                together, size = [], 0
    if together:
        yield together


class Checker:
    """Checks an input file for one endpoint, line by line, into `checked`."""

    def __init__(
        self, endpoint: str, line_bytes: int, check_model: Callable[[str | None], None], *, lenient: bool
    ) -> None:
        """`check_model` raises RequestError for a name that is not served."""
        self.checked = Checked()
        self._endpoint = endpoint
        self._line_bytes = line_bytes
        self._check_model = check_model
        self._lenient = lenient

    def add(self, lines: list[Line]) -> None:
        for line in lines:
            self.checked.total += 1
            try:
                self._check(line)
            except RequestError as error:
                self.checked.found(error.code or "invalid_value", error.what, line.number, error.param)

    def _check(self, line: Line) -> None:
        """Raises RequestError."""
        if len(line.raw) > self._line_bytes:
            raise RequestError(f"The line is longer than {self._line_bytes} bytes", code="line_too_long")
        try:
            given = parse_body(line.raw, _Line, {})
        except RequestError as error:
            text = error.what.replace("The body", "The line", 1)
            raise RequestError(text, param=error.param, code=error.code) from None
        self._check_id(given.custom_id, line.number)
        if given.method != "POST":
            raise RequestError("'method' must be POST", param="method", code="invalid_method")
        if given.url != self._endpoint:
            text = f"'url' must be the batch's endpoint, {self._endpoint}"
            raise RequestError(text, param="url", code="mismatched_endpoint")
        try:
            self._check_body(given.body)
        except RequestError as error:
            param = f"body.{error.param}" if error.param else "body"
            raise RequestError(error.what, param=param, code=error.code) from None

    def _check_id(self, custom_id: str, number: int) -> None:
        if not 0 < len(custom_id) <= _ID_CHARS:
            text = f"'custom_id' must have 1 to {_ID_CHARS} characters"
            raise RequestError(text, param="custom_id", code="invalid_custom_id")
        if self.checked.ids.setdefault(custom_id, number) != number:
            text = f"'custom_id' must be unique: line {self.checked.ids[custom_id]} has the same"
            raise RequestError(text, param="custom_id", code="duplicate_custom_id")

    def _check_body(self, body: dict[str, Any]) -> None:
        model, undone = ENDPOINTS[self._endpoint]
        if body.get("stream"):
            raise RequestError("A batch does not stream", param="stream", code="invalid_value")
        if (tier := body.get("service_tier")) is not None and tier not in TIERS:
            text = f"A batch is served in the tier flex: {tier!r} is not possible"
            raise RequestError(text[:200], param="service_tier", code="invalid_value")
        if body.get("priority"):
            text = "A batch comes after all other requests: it has no priority"
            raise RequestError(text, param="priority", code="invalid_value")
        parsed = parse_body(json.dumps(body).encode(), model, undone, lenient=self._lenient)
        name = getattr(parsed, "model", None)
        self._check_model(name)
        self.checked.models.add(name)
