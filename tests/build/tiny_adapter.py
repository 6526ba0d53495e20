"""PEFT adapters for tests, made and saved by PEFT itself, with random weights that matter."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def write_adapter(base: Path, out: Path, *, seed: int = 1, size: float = 0.1, **config: Any) -> Path:
    """Save an adapter for the checkpoint `base` in `out` and return it; `config` holds keys of `LoraConfig`.

    Neither half is zero, as PEFT's own start would leave one.
    """
    import torch

    model = _with_adapter(base, **config)
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_" in name:
                weight.copy_(torch.randn(weight.shape) * size)
    model.save_pretrained(out, save_embedding_layers=False)
    return out


def merged(base: Path, adapter: Path) -> Any:
    """The model in float32 with the adapter merged into its weights, by PEFT."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    return PeftModel.from_pretrained(model, adapter).merge_and_unload().eval()


def _with_adapter(base: Path, **config: Any) -> Any:
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    settings = {"task_type": "CAUSAL_LM", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj"], **config}
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    return get_peft_model(model, LoraConfig(**settings))
