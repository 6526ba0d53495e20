"""What runs while tokens flow: the engine, the Triton supervisor, the client and the gateway.

`conch.Client`, `conch.AsyncClient` and the errors of `conch.errors` are the public surface for programs. They
load on first use, so that `import conch` (and every command) starts fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from conch.client import AsyncClient as AsyncClient
    from conch.client import Client as Client
    from conch.client import Delta as Delta
    from conch.client import Result as Result
    from conch_build import errors as errors

__all__ = ["AsyncClient", "Client", "Delta", "Result", "errors"]


def __getattr__(name: str) -> Any:
    if name == "errors":
        return import_module("conch_build.errors")
    if name in __all__:
        return getattr(import_module("conch.client"), name)
    raise AttributeError(f"module 'conch' has no attribute {name!r}")
