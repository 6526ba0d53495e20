"""Tiny real checkpoints for tests: every family that compiles, seeded random weights, a real tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

Family = Literal["gemma2", "gemma3_text", "llama", "mistral", "mixtral", "phi3", "qwen2", "qwen3", "qwen3_moe"]

_OWN: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": None},
    "mixtral": {"num_local_experts": 4},
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 128, "mlp_only_layers": []},
}
"""What a family's own settings are beside those of all."""

END_OF_TEXT, IM_START, IM_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_CORPUS = [
    "Hello there, how are you today?",
    "The quick brown fox jumps over the lazy dog.",
    "one two three",
] * 8


def write_tiny(
    path: Path,
    family: Family = "llama",
    *,
    dtype: Literal["float32", "bfloat16"] = "float32",
    seed: int = 0,
    shard_bytes: int | None = None,
    **config: Any,
) -> Path:
    """Write a Hugging Face directory at `path` and return it.

    Hidden 64, 4 heads, 2 KV heads, 2 layers, vocabulary 320; `config` overrides any key of config.json.
    """
    import torch
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    settings: dict[str, Any] = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 320,
        "max_position_embeddings": 512,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        **_OWN.get(family, {}),
        **config,
    }
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[family](**settings), dtype=getattr(torch, dtype))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            # Norms near one (Gemma adds it) and biases that matter: initialised ones would hide a forgotten tensor.
            is_norm = "norm" in name and not family.startswith("gemma")
            weight.copy_(torch.randn(weight.shape) * 0.1 + (1.0 if is_norm else 0.0))
    path = Path(path)
    model.save_pretrained(path, **({"max_shard_size": shard_bytes} if shard_bytes else {}))
    write_tokenizer(path)
    return path


def write_tokenizer(path: Path) -> None:
    """Write the byte-level BPE tokenizer (300 tokens; ids 0, 1, 2 are special) with its chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=[END_OF_TEXT, IM_START, IM_END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=IM_START, eos_token=IM_END, pad_token=END_OF_TEXT
    )
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(path)
