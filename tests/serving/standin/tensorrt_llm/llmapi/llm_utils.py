"""The YAML's mappings become objects."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


def update_llm_args_with_extra_dict(llm_args: dict[str, Any], llm_args_dict: dict[str, Any]) -> dict[str, Any]:
    """Takes `decoding_type` out of what it is given, as the real one does."""
    if "speculative_config" in llm_args_dict:
        config = llm_args_dict["speculative_config"]
        llm_args_dict["speculative_config"] = SimpleNamespace(kind=config.pop("decoding_type"), **config)
    return llm_args | llm_args_dict
