"""The draft before it has learned: the target's first layers, and its output head cut to some tokens.

The first layers, because what they expect is what they get; the last one in their place was measured to learn slower.
A transformers model like any other, but that `lm_head` has a row for each kept token only: row r stands for the
target's token `kept[r]`. Reads only the tensors it keeps, so a large target needs little memory. Knows nothing of
training.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from conch_build.errors import CheckpointError
from conch_build.families import EMBEDDING, HEAD
from conch_build.weights import read_weights

_LAYER = re.compile(r"model\.layers\.(\d+)\.")
_FOR_EACH_LAYER = ("layer_types", "no_rope_layers")
"""Keys of config.json that hold one value a layer."""


def pruned(source: Path, layers: int, kept: torch.Tensor) -> Any:
    """The model in float32: the first `layers` of the target in `source`, embedding, last norm, head rows `kept`.

    Raises CheckpointError when a tensor is missing.
    """
    config = AutoConfig.from_pretrained(source)
    tensors = dict(_tensors(source, layers))
    head = tensors[EMBEDDING if config.tie_word_embeddings else HEAD]
    tensors[HEAD] = head[kept]
    shorten(config, layers)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.lm_head = torch.nn.Linear(head.shape[1], len(kept), bias=False)
    wrong = model.load_state_dict(tensors, strict=False)
    if wrong.missing_keys or wrong.unexpected_keys:
        names = ", ".join(f"`{name}`" for name in [*wrong.missing_keys, *wrong.unexpected_keys][:4])
        raise CheckpointError(f"its tensors do not fit its config: {names}", where=str(source))
    return model


def shorten(config: Any, layers: int) -> None:
    """Make the target's config that of its first `layers`, with a head of its own."""
    for key in _FOR_EACH_LAYER:
        values = getattr(config, key, None)
        if values:
            setattr(config, key, values[:layers])
    config.num_hidden_layers = layers
    config.tie_word_embeddings = False
    if getattr(config, "final_logit_softcapping", None):
        config.final_logit_softcapping = None  # it keeps the order of the logits, which is all that a draft is for


def _tensors(source: Path, layers: int) -> Iterator[tuple[str, torch.Tensor]]:
    """Name -> tensor of what the draft keeps."""
    from safetensors import safe_open

    problems: list[CheckpointError] = []
    weights = read_weights(source, problems)
    if weights is None:
        raise problems[0]
    for path in weights.files:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 (not a mapping)
                layer = _LAYER.match(name)
                if layer is None or int(layer[1]) < layers:
                    yield name, file.get_tensor(name).float()
