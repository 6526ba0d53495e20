"""What the parts of a plan are made of: the base of its models, and the types of their values."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

INT32 = (1 << 31) - 1
_LONGEST_NAME, _LONGEST_PATH = 255, 4096


def _a_place(value: str) -> str:
    """Refuse what no file can be called, before a file is looked for."""
    if not value.strip():
        raise ValueError("it is empty")
    if "\n" in value or "\t" in value:
        raise ValueError(f"{value!r} is more than one line or column")
    if len(value.encode()) > _LONGEST_PATH or any(len(name.encode()) > _LONGEST_NAME for name in value.split("/")):
        raise ValueError(f"{value[:20]!r}... is too long for the name of a file")
    return value


Count = Annotated[int, Field(ge=1, le=INT32, strict=True)]
"""What the tools behind a plan hold in 32 bits."""
Gpus = Annotated[int, Field(ge=1, le=4096, strict=True)]
"""GPUs, or ranks and servers that have some each."""
Place = Annotated[str, AfterValidator(_a_place)]
"""A path, or a name that stands for one."""
Port = Annotated[int, Field(ge=0, le=65535, strict=True)]


class Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)
