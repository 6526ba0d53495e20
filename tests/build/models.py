"""Models that tests describe by their facts alone: no file of theirs is anywhere."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from conch_build.model_info import ModelInfo

LLAMA_8B = ModelInfo(
    architecture="LlamaForCausalLM",
    model_type="llama",
    num_layers=32,
    hidden_size=4096,
    num_attention_heads=32,
    num_kv_heads=8,
    head_dim=128,
    intermediate_size=14336,
    num_experts=0,
    vocab_size=128256,
    max_position_embeddings=8192,
    dtype="bfloat16",
    tied_embeddings=False,
    rope={"theta": 500000.0, "scaling": None},
    trained_positions=8192,
    sliding_window=None,
    end_ids=(128001, 128009),
    bos_id=128000,
    pad_id=None,
    chat_template=True,
    parameters=8_030_261_248,
    embedding_parameters=525_336_576,
    weight_bytes=16_060_522_496,
    quantization=None,
)

MIXTRAL = replace(
    LLAMA_8B,
    architecture="MixtralForCausalLM",
    model_type="mixtral",
    num_experts=8,
    vocab_size=32000,
    end_ids=(2,),
    bos_id=1,
    parameters=46_702_792_704,
)

SMOLLM = replace(
    LLAMA_8B,
    num_layers=30,
    hidden_size=576,
    num_attention_heads=9,
    num_kv_heads=3,
    head_dim=64,
    intermediate_size=1536,
    vocab_size=49152,
    end_ids=(2,),
    bos_id=1,
    parameters=134_515_008,
)


def engine_json(**changes: Any) -> dict[str, Any]:
    """`config.json` as `trtllm-build` writes it for LLAMA_8B in fp8 on one GPU, in the parts that are read.

    `changes` are set by their path: `build_config__max_seq_len=1`.
    """
    config: dict[str, Any] = {
        "version": "1.2.1",
        "pretrained_config": {
            "architecture": "LlamaForCausalLM",
            "dtype": "bfloat16",
            "vocab_size": 128256,
            "mapping": {"world_size": 1, "tp_size": 1, "pp_size": 1, "moe_tp_size": 1, "moe_ep_size": 1},
            "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "group_size": 128},
        },
        "build_config": {
            "max_input_len": 1024,
            "max_seq_len": 4096,
            "max_batch_size": 64,
            "max_num_tokens": 2048,
            "kv_cache_type": "PAGED",
            "speculative_decoding_mode": 1,
            "max_draft_len": 0,
            "lora_config": {"lora_dir": [], "max_lora_rank": 64, "lora_target_modules": []},
            "plugin_config": {
                "remove_input_padding": True,
                "use_paged_context_fmha": True,
                "tokens_per_block": 32,
                "lora_plugin": None,
            },
        },
    }
    for path, value in changes.items():
        *parents, last = path.split("__")
        part = config
        for name in parents:
            part = part[name]
        part[last] = value
    return config
