"""One thing that a release does not take: which key, what is wrong, what to do."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    key: str
    """`kv_cache_config.dtype`"""
    message: str
    fix: str = ""
