"""A form with a file in it, as `multipart/form-data`: the fields to memory, the file to the disk as it comes.

Knows nothing of what the file is for. Neither the file nor the rest of the form can be larger than is said here.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import unicodedata
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from fastapi import Request
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from conch.gateway.errors import MediaTypeError, StorageFull, TooLarge
from conch_build.errors import RequestError

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

FORM_BYTES = 64 << 10
"""Of a form beside its file."""
_FIELD_BYTES = 4 << 10
_PARTS = 16
_NAME_CHARS = 200
_NOT_IN_NAMES = re.compile(r"[\x00-\x1f\x7f/\\]")


@dataclass
class Form:
    fields: dict[str, str] = field(default_factory=dict)
    filename: str = ""
    bytes: int = 0
    """Of the file."""


async def save_form(request: Request, path: Path, limit: int) -> Form:
    """Read the request's form; its part `file` becomes `path`, which is there only if all went well.

    Raises RequestError for a form that is wrong, TooLarge for a file over `limit` bytes, StorageFull.
    """
    kind, options = parse_options_header(request.headers.get("content-type"))
    boundary = options.get(b"boundary")
    if kind != b"multipart/form-data" or not boundary:
        raise MediaTypeError("content-type must be multipart/form-data, with a boundary")
    partial = path.with_suffix(".part")
    try:
        with partial.open("wb") as file:
            reader = _Reader(file, limit)
            parser = MultipartParser(boundary, reader.callbacks())
            async for chunk in request.stream():
                parser.write(chunk)
            parser.finalize()
            file.flush()
            await asyncio.to_thread(os.fsync, file.fileno())
        if not reader.form.filename:
            raise RequestError("Missing required parameter: 'file'", param="file", code="missing_required_parameter")
        partial.rename(path)
    except FormParserError as error:
        raise RequestError(f"The form cannot be read: {error}", code="invalid_form") from None
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageFull() from None
        raise
    finally:
        partial.unlink(missing_ok=True)
    return reader.form


def safe_name(name: str) -> str:
    """The last part of a path, without what could mean something to a shell, a terminal or a file system."""
    last = re.split(r"[/\\]", unicodedata.normalize("NFC", name))[-1]
    clean = "".join(char for char in _NOT_IN_NAMES.sub("", last) if unicodedata.category(char)[0] != "C")
    return clean.strip(" .")[-_NAME_CHARS:] or "file"


class _Reader:
    """What the parser tells, part by part."""

    def __init__(self, file: BinaryIO, limit: int) -> None:
        self.form = Form()
        self._file = file
        self._limit = limit
        self._parts = 0
        self._header = self._value = b""
        self._name: str = ""
        self._text = b""
        self._is_file = False

    def callbacks(self) -> MultipartCallbacks:
        return {
            "on_part_begin": self._begin,
            "on_header_field": self._add_header,
            "on_header_value": self._add_value,
            "on_header_end": self._end_header,
            "on_headers_finished": self._end_headers,
            "on_part_data": self._add_data,
            "on_part_end": self._end,
        }

    def _begin(self) -> None:
        self._parts += 1
        if self._parts > _PARTS:
            raise RequestError(f"The form has more than {_PARTS} parts", code="invalid_form")
        self._name, self._text, self._is_file = "", b"", False
        self._options: dict[bytes, bytes] = {}

    def _add_header(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _add_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _end_header(self) -> None:
        if self._header.lower() == b"content-disposition":
            self._options = parse_options_header(self._value)[1]
        self._header = self._value = b""

    def _end_headers(self) -> None:
        self._name = self._options.get(b"name", b"").decode(errors="replace")
        self._is_file = self._name == "file"
        if self._is_file:
            if self.form.filename:
                raise RequestError("The form has more than one file", param="file", code="invalid_form")
            if b"filename" not in self._options:
                raise RequestError("Invalid value for 'file': must be a file", param="file", code="invalid_value")
            self.form.filename = safe_name(self._options[b"filename"].decode(errors="replace"))
        elif self._name in self.form.fields:
            raise RequestError(f"'{self._name[:80]}' is given twice", param=self._name[:80], code="invalid_form")

    def _add_data(self, data: bytes, start: int, end: int) -> None:
        if not self._is_file:
            self._text += data[start:end]
            if len(self._text) > _FIELD_BYTES:
                raise RequestError(f"'{self._name[:80]}' is too long", param=self._name[:80], code="invalid_form")
            return
        self.form.bytes += end - start
        if self.form.bytes > self._limit:
            raise TooLarge(f"The file is larger than {self._limit} bytes.", param="file", code="file_too_large")
        self._file.write(data[start:end])

    def _end(self) -> None:
        if not self._is_file:
            self.form.fields[self._name] = self._text.decode(errors="replace")
