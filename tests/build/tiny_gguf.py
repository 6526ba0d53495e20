"""The tiny Llama as a GGUF file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np


def write_gguf(source: Path, target: Path, *, pre: str = "smollm") -> Path:
    """Write the Llama checkpoint in `source` as llama.cpp's converter does; `pre` names its text splitter."""
    from gguf import GGUFWriter, TokenType
    from safetensors.torch import load_file

    config = json.loads((source / "config.json").read_text())
    tokenizer = json.loads((source / "tokenizer.json").read_text())
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    names = {
        "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
        "q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_output",
        "gate_proj": "ffn_gate", "up_proj": "ffn_up", "down_proj": "ffn_down",
        "embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output",
    }  # fmt: skip
    writer = GGUFWriter(target, "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_vocab_size(config["vocab_size"])
    tokens = sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].get)
    tokens += [f"<unused{index}>" for index in range(len(tokens), config["vocab_size"])]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.CONTROL] * 3 + [TokenType.NORMAL] * (len(tokens) - 3))
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(0)
    writer.add_chat_template((source / "chat_template.jinja").read_text())
    for name, tensor in load_file(source / "model.safetensors").items():
        parts = name.removesuffix(".weight").split(".")
        array = tensor.float().numpy()
        if parts[-1] in heads:  # llama.cpp interleaves the halves that rotary embedding pairs
            array = array.reshape(heads[parts[-1]], 2, -1, array.shape[1]).swapaxes(1, 2).reshape(array.shape)
        block = f"blk.{parts[2]}." if "layers" in parts else ""
        writer.add_tensor(f"{block}{names[parts[-1]]}.weight", np.ascontiguousarray(array))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target
