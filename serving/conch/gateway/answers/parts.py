"""What an answer consists of: text, reasoning, and calls of tools. Knows nothing of how a model writes them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Content:
    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call begins; `index` counts those of one answer."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of a call's arguments, which are JSON text."""

    index: int
    text: str


Part = Content | Reasoning | CallStart | CallArguments
