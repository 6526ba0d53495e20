"""`adapters.json` of a model repository: which LoRA adapters an engine may serve, by name and id.

It lies beside the engine, not in it: another adapter needs no other engine. Names and ids mean something only through
it, and it alone says where weights are read: no request can.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, ValidationError

from conch_build.adapters import adaptable_layers, open_adapter
from conch_build.errors import StoreError
from conch_build.plan import Lora

if TYPE_CHECKING:
    from conch_build.model_info import ModelInfo

REGISTRY_FILE = "adapters.json"


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class RegisteredAdapter(_Record):
    name: str
    id: int
    """From 1: `lora_task_id` of a request; 0 is the model without adapters."""
    path: Path
    """PEFT directory. Read when the adapter is loaded: what lies there then is what counts."""


class AdapterRegistry(_Record):
    adapters: tuple[RegisteredAdapter, ...]
    layers: tuple[str, ...]
    """Layers that one of them adds to: these get slots."""
    max_rank: int
    max_loaded: int

    @property
    def slots(self) -> int:
        """Adapters that can be loaded at once."""
        return min(self.max_loaded, len(self.adapters))

    def save(self, model: Path) -> None:
        """Write it into the folder of the model `tensorrt_llm`."""
        (model / REGISTRY_FILE).write_text(self.model_dump_json(indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, model: Path) -> AdapterRegistry | None:
        """The registry in the folder of the model `tensorrt_llm`; None if there is none. Raises StoreError."""
        path = model / REGISTRY_FILE
        try:
            return cls.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as error:
            reason = error.strerror if isinstance(error, OSError) else f"{error.error_count()} values in it are wrong"
            fix = "Build it again with `conch build`."
            raise StoreError(f"does not read as a registry of adapters: {reason}", where=str(path), fix=fix) from None


def register(lora: Lora, info: ModelInfo) -> AdapterRegistry | None:
    """The registry of a plan's adapters; None if it names none. Raises CheckpointError for one that does not fit."""
    if not lora.adapters:
        return None
    layers = adaptable_layers(info)
    opened = {name: open_adapter(Path(path), layers, lora.max_rank) for name, path in lora.adapters.items()}
    return AdapterRegistry(
        adapters=tuple(
            RegisteredAdapter(name=name, id=number, path=adapter.folder)
            for number, (name, adapter) in enumerate(opened.items(), 1)
        ),
        layers=tuple(layer for layer in layers if any(layer in adapter.pairs for adapter in opened.values())),
        max_rank=lora.max_rank,
        max_loaded=lora.max_loaded,
    )
