"""How tests ask for the refusal of a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from conch_build.checkpoint import resolve
from conch_build.errors import CheckpointError
from conch_build.plan import Model


def refusal(folder: Path | str, cache: Path | None = None, **model: Any) -> CheckpointError:
    """The CheckpointError that resolving `folder` raises; `model` overrides keys of the plan's model."""
    with pytest.raises(CheckpointError) as caught:
        resolve(Model(checkpoint=str(folder), **model), cache)
    assert caught.value.exit_code == 2
    return caught.value
