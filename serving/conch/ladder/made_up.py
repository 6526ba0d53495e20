"""LoRA adapters with random weights, as PEFT would save them, for a plan that names none: what they cost does not
depend on what they say. Knows nothing of engines.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from conch_build.adapters import CONFIG, WEIGHTS, adaptable_layers

if TYPE_CHECKING:
    from conch_build.model_info import ModelInfo

COUNT, RANK = 4, 8
_ADAPTED = ("q_proj", "v_proj")
"""What PEFT adapts of most models unless told otherwise."""


def made_up(info: ModelInfo, folder: Path) -> dict[str, str]:
    """Name -> folder, `COUNT` of them in `folder`; empty for a model without the layers that usually have adapters."""
    import numpy as np
    from safetensors.numpy import save_file

    layers = {name: shape for name, shape in adaptable_layers(info).items() if name.endswith(_ADAPTED)}
    found = {}
    for number in range(COUNT if layers else 0):
        target = folder / f"adapter-{number + 1}"
        target.mkdir(parents=True)
        chance = np.random.default_rng(number)
        tensors = {
            f"base_model.model.{name}.lora_{side}.weight": (0.01 * chance.standard_normal(shape)).astype(np.float32)
            for name, (out, into) in layers.items()
            for side, shape in (("A", (RANK, into)), ("B", (out, RANK)))
        }
        save_file(tensors, target / WEIGHTS)
        config = {"peft_type": "LORA", "r": RANK, "lora_alpha": 2 * RANK, "target_modules": list(_ADAPTED)}
        (target / CONFIG).write_text(json.dumps(config) + "\n", encoding="utf-8")
        found[target.name] = str(target)
    return found
