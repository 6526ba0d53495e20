"""A growing answer taken apart into text and calls of tools.

Text that may still become a call is held back; the arguments of a call pass through as they come. What only looks
like a call (no JSON, an unknown name) is text, and nothing of it is lost.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Collection
from typing import Any

from conch.gateway.answers.parts import CallArguments, CallStart, Content, Part
from conch.gateway.answers.stops import possible_start
from conch.gateway.calls.json_end import JsonEnd
from conch.gateway.calls.markup import Markup

_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*')
_NAMED = re.compile(r"\s*([\w.-]+)(?:\[CALL_ID\][\w-]*)?(?:\[ARGS\])?\s*(?=\{)")
_PYTHON = "<|python_tag|>"
_AFTER = re.compile(r"\s*\}?\s*[;,]?\s*")


class CallReader:
    """`names`: the tools that there are. `single`: only the first call counts. `forced`: there is nothing but calls."""

    def __init__(self, markup: Markup, names: Collection[str], *, single: bool, forced: bool) -> None:
        self.count = 0
        """Calls that have begun."""
        self.done = False
        """What still comes does not count."""
        self._markup = markup
        self._names = names
        self._single = single
        self._forced = forced
        self._held = ""
        self._opened = ""
        self._listed = False
        self._end = JsonEnd()
        self._encoded = ""
        self._has_text = self._after_call = False
        self._state: Callable[[list[Part]], bool] = self._text if markup.opening else self._beginning

    def push(self, text: str) -> list[Part]:
        """What new text adds."""
        parts: list[Part] = []
        self._held += text
        while not self.done and self._state(parts):
            pass
        return parts

    def flush(self) -> list[Part]:
        """What was held back, at the end of the answer."""
        parts: list[Part] = []
        if self._state == self._arguments:
            self._argue(parts, self._encoded)
        elif self._state != self._tail and not self._forced:
            self._say(parts, self._opened + self._held)
        return parts

    def _beginning(self, parts: list[Part]) -> bool:
        """The start of an answer that is a call if it begins like one."""
        text = self._held.lstrip()
        if not text or _PYTHON.startswith(text):
            return False
        self._opened = self._held[: len(self._held) - len(text)]
        self._held = text.removeprefix(_PYTHON).lstrip()
        self._opened += text[: len(text) - len(self._held)]
        self._state = self._head if text.startswith(("{", _PYTHON)) else self._rest
        return True

    def _text(self, parts: list[Part]) -> bool:
        opening = self._markup.opening
        at = self._held.find(opening)
        if at >= 0:
            self._say(parts, self._held[:at].rstrip())
            self._held = self._held[at + len(opening) :]
            self._opened, self._listed = opening, False
            self._state = self._head
            return True
        keep = len(self._held[: possible_start(self._held, opening)].rstrip())
        self._say(parts, self._held[:keep])
        self._held = self._held[keep:]
        return False

    def _rest(self, parts: list[Part]) -> bool:
        """Nothing but text is to come."""
        self._say(parts, self._opened + self._held)
        self._opened = self._held = ""
        return False

    def _head(self, parts: list[Part]) -> bool:
        """Before the arguments."""
        if self._markup.name.startswith("mistral") and not self._listed:
            text = self._held.lstrip()
            if not text:
                return False
            if text[0] != "[":
                return self._named(parts)
            self._opened += self._held[: len(self._held) - len(text) + 1]
            self._held, self._listed = text[1:], True
        found = _HEAD.match(self._held)
        if found:
            return self._begin(parts, _loaded(found[1]), found.end())
        start = len(self._held) - len(self._held.lstrip())
        size = JsonEnd().find(self._held[start:])
        if size is None:
            return self._held[start : start + 1] not in ("", "{") and self._give_up(parts)
        call = _loaded(self._held[start : start + size])
        if not isinstance(call, dict) or call.get("name") not in self._names:
            return self._give_up(parts)
        self._begin(parts, call["name"], start + size)
        arguments = call.get("arguments", call.get("parameters"))
        self._argue(parts, arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False))
        self._end_call()
        return True

    def _named(self, parts: list[Part]) -> bool:
        """NAME[ARGS]{...}"""
        found = _NAMED.match(self._held)
        if found:
            return self._begin(parts, found[1], found.end())
        return "{" in self._held and self._give_up(parts)

    def _begin(self, parts: list[Part], name: Any, end: int) -> bool:
        if name not in self._names:
            return self._give_up(parts)
        parts.append(CallStart(self.count, self._new_id(), name))
        self.count += 1
        self._after_call = True
        self._held, self._opened = self._held[end:], ""
        self._end, self._encoded = JsonEnd(), ""
        self._state = self._arguments
        return True

    def _arguments(self, parts: list[Part]) -> bool:
        """An object passes through as it comes; a text that holds one, or null, must be whole to be understood."""
        self._held = self._held if self._encoded else self._held.lstrip()
        if not self._encoded and self._held.startswith("{"):
            self._state = self._object
            return True
        end = self._end.find(self._held)
        self._encoded += self._held[:end]
        self._held = "" if end is None else self._held[end:]
        if end is not None:
            value = _loaded(self._encoded)
            self._argue(parts, value if isinstance(value, str) else "{}" if value is None else self._encoded)
            self._end_call()
        return end is not None

    def _object(self, parts: list[Part]) -> bool:
        end = self._end.find(self._held)
        self._argue(parts, self._held[:end])
        self._held = "" if end is None else self._held[end:]
        if end is not None:
            self._end_call()
        return end is not None

    def _end_call(self) -> None:
        self._state = self._tail
        self.done = self._single

    def _tail(self, parts: list[Part]) -> bool:
        """Behind the arguments, up to the next call or to text."""
        found = _AFTER.match(self._held)
        rest = self._held[found.end() :] if found else self._held
        closing = self._markup.closing
        if not rest or (closing != rest and closing.startswith(rest)):
            return False
        self._opened = ""
        if rest.startswith("{") and (self._listed or not self._markup.opening):
            self._state = self._head
        else:
            rest = rest.removeprefix(closing) if closing else rest.removeprefix("]") if self._listed else rest
            self._state = self._text if self._markup.opening else self._rest
        self._held = rest
        return True

    def _give_up(self, parts: list[Part]) -> bool:
        """It was no call."""
        if self._markup.opening:
            self._say(parts, self._opened)
            self._opened = ""
        self._state = self._text if self._markup.opening else self._rest
        return True

    def _say(self, parts: list[Part], text: str) -> None:
        """Blanks around calls belong to them; text behind one begins a new line."""
        if self._after_call:
            text = text.lstrip()
            text = f"\n{text}" if text and self._has_text else text
        if text:
            self._has_text, self._after_call = True, False
            parts.append(Content(text))

    def _argue(self, parts: list[Part], text: str) -> None:
        if text:
            parts.append(CallArguments(self.count - 1, text))

    def _new_id(self) -> str:
        letters = uuid.uuid4().hex
        return letters[: self._markup.id_length] if self._markup.id_length else f"call_{letters[:24]}"


def _loaded(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
