"""The output of /v1/responses as it grows: items, and the events that tell of them. Knows nothing of engines."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Any

from conch.gateway.answers.parts import CallArguments, CallStart, Content, Part, Reasoning

Event = dict[str, Any]
_PART = {"message": "output_text", "reasoning": "reasoning_text"}


class ResponseOutput:
    """Told of parts as they come; what is next to each other and of one kind is one item."""

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        self._open: dict[str, Any] | None = None

    def add(self, part: Part, log_probs: Iterable[dict[str, Any]] = ()) -> list[Event]:
        """The events of a part; `log_probs` are of its tokens."""
        match part:
            case Content(text):
                return [*self._opened("message"), *self._grow(text, list(log_probs))]
            case Reasoning(text):
                return [*self._opened("reasoning"), *self._grow(text, [])]
            case CallStart(_, id, name):
                call = {"type": "function_call", "call_id": id, "name": name, "arguments": ""}
                return [*self.close(), *self._begin("fc", call)]
            case CallArguments(_, text):
                assert self._open is not None
                self._open["arguments"] += text
                return [self._event("function_call_arguments.delta", delta=text)]

    def close(self, status: str = "completed") -> list[Event]:
        """The item that is being written is whole, or `incomplete`."""
        item, events = self._open, []
        if item is None:
            return []
        if item["type"] == "function_call":
            done = {"arguments": item["arguments"], "name": item["name"]}
            events.append(self._event("function_call_arguments.done", **done))
        else:
            part = item["content"][0]
            logged = {"logprobs": part["logprobs"]} if item["type"] == "message" else {}
            events.append(self._event(f"{part['type']}.done", content_index=0, text=part["text"], **logged))
            events.append(self._event("content_part.done", content_index=0, part=_copy(part)))
        item["status"] = status
        events.append(self._item_event("output_item.done"))
        self._open = None
        return events

    def finish(self, status: str) -> list[Event]:
        """Nothing more comes. An answer without anything is an empty message."""
        opened = [] if self.items else self._opened("message")
        return [*opened, *self.close(status)]

    def _opened(self, kind: str) -> list[Event]:
        if self._open is not None and self._open["type"] == kind:
            return []
        events = self.close()
        part: dict[str, Any] = {"type": _PART[kind], "text": ""}
        if kind == "message":
            part |= {"annotations": [], "logprobs": []}
            item = {"type": kind, "role": "assistant", "content": []}
        else:
            item = {"type": kind, "summary": [], "content": []}
        events += self._begin("msg" if kind == "message" else "rs", item)
        assert self._open is not None
        self._open["content"].append(part)
        return [*events, self._event("content_part.added", content_index=0, part=_copy(part))]

    def _begin(self, prefix: str, item: dict[str, Any]) -> list[Event]:
        self._open = {"id": f"{prefix}_{uuid.uuid4().hex}", **item, "status": "in_progress"}
        self.items.append(self._open)
        return [self._item_event("output_item.added")]

    def _grow(self, text: str, log_probs: list[dict[str, Any]]) -> list[Event]:
        assert self._open is not None
        part = self._open["content"][0]
        part["text"] += text
        if self._open["type"] == "reasoning":
            return [self._event("reasoning_text.delta", content_index=0, delta=text)]
        part["logprobs"] += log_probs
        return [self._event("output_text.delta", content_index=0, delta=text, logprobs=log_probs)]

    def _event(self, kind: str, **fields: Any) -> Event:
        assert self._open is not None
        place = {"item_id": self._open["id"], "output_index": len(self.items) - 1}
        return {"type": f"response.{kind}", **place, **fields}

    def _item_event(self, name: str) -> Event:
        assert self._open is not None
        item = {**self._open}
        if "content" in item:
            item["content"] = [_copy(part) for part in item["content"]]
        return {"type": f"response.{name}", "output_index": len(self.items) - 1, "item": item}


def _copy(part: dict[str, Any]) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, list) else value for name, value in part.items()}
