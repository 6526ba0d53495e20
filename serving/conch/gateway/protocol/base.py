"""What every part of a body has in common."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

Label = Annotated[str, Field(max_length=512)]
"""A short text that the caller goes by."""
Metadata = Annotated[dict[Annotated[str, Field(max_length=64)], Label], Field(max_length=16)]


class Part(BaseModel):
    """Nothing is taken that is not listed, and null means absent."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        return {name: value for name, value in data.items() if value is not None}
