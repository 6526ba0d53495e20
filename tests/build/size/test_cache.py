"""The KV cache of every kind of attention, in bytes: published figures, and what must hold for any numbers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conch_build.errors import InputError
from conch_build.gpu.weights import Split
from conch_build.model_info import Latent
from conch_build.size.cache import ELEMENT_BYTES, Cache, attention_kind, cache_of, latent_cache, plain_cache
from conch_build.size.source import plan_and_model
from tests.build.configs import Name, described, write_config

GIB = 1 << 30
MISTRAL = {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}
GPT_OSS = {"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss"}
dtypes = st.sampled_from(sorted(ELEMENT_BYTES))


def silent(text: str) -> None:
    """Nobody listens."""


def test_grouped_queries_are_counted_by_their_kv_heads() -> None:
    sample = cache_of(described("smollm2-135m"), "bf16")
    assert sample.bytes_per_token == 23_040
    assert plain_cache(30, 9, 64, "bf16").bytes_per_token == 69_120


def test_a_window_on_every_second_layer_by_pages_and_without() -> None:
    cache = plain_cache(36, 8, 64, "bf16", 32, [128 * (layer % 2 == 0) for layer in range(36)])
    assert cache.bytes_per_token_past_windows == 36_864
    assert cache.window_bytes == 4_718_592
    assert cache.bytes_per_token == 73_728
    assert cache.request_bytes(8192, "window") == 8192 * 36_864 + 4_718_592
    assert cache.request_bytes(8192, "full") == 8192 * 73_728


def test_latent_attention_caches_one_vector_and_one_key() -> None:
    assert latent_cache(61, 512, 64, "bf16").bytes_per_token == 70_272


@pytest.mark.parametrize(
    ("layers", "kv_heads", "head_dim", "a_token"),
    [
        (40, 40, 128, 819_200),  # OPT-13B: 800 KB (https://arxiv.org/abs/2309.06180, section 3)
        (32, 32, 128, 524_288),  # Llama 2 7B (https://www.baseten.co/blog/llm-transformer-inference-guide)
        (80, 8, 128, 327_680),  # Qwen 2.5 72B (https://arxiv.org/abs/2505.09343, table 1)
        (126, 8, 128, 516_096),  # Llama 3.1 405B (the same table)
    ],
)
def test_published_bytes_a_token(layers: int, kv_heads: int, head_dim: int, a_token: int) -> None:
    assert plain_cache(layers, kv_heads, head_dim, "fp16").bytes_per_token == a_token


@pytest.mark.parametrize(("tokens", "gib"), [(1024, 0.125), (16_000, 1.95), (128_000, 15.62)])
def test_llama_3_1_8b_as_published(tokens: int, gib: float) -> None:
    """https://huggingface.co/blog/llama31#inference-memory-requirements"""
    cache = cache_of(described("llama-3-8b"), "fp16", 1)
    assert cache.request_bytes(tokens) / GIB == pytest.approx(gib, abs=0.006)


def test_a_pool_that_tensorrt_llm_allocated() -> None:
    """NVIDIA/TensorRT-LLM#1400 prints both numbers, for Llama 2 7B."""
    cache = plain_cache(32, 32, 128, "fp16", 64)
    assert cache.request_bytes(132_608) == 69_524_783_104


def test_256_requests_of_8192_tokens() -> None:
    assert 256 * cache_of(described("llama-3-8b"), "bf16").request_bytes(8192) == 274_877_906_944


def test_the_kinds_of_attention_are_told_apart() -> None:
    info = described("llama-3-8b")
    kinds = [attention_kind(replace(info, num_kv_heads=heads)) for heads in (32, 8, 1)]
    assert kinds == ["mha", "gqa", "mqa"]
    assert attention_kind(replace(info, latent=Latent(512, 64, 128, 128, 0))) == "mla"


@pytest.mark.parametrize(
    ("base", "keys", "windows"),
    [
        ("llama-3-8b", {"sliding_window": 4096}, {0}),
        ("llama-3-8b", {**MISTRAL, "sliding_window": 64}, {64}),
        ("qwen3-32b", {"sliding_window": 64, "use_sliding_window": True, "max_window_layers": 60}, {0, 64}),
        (
            "llama-3-8b",
            {"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "sliding_window": 128},
            {0, 128},
        ),
    ],
)
def test_windows_are_read_from_the_config(
    tmp_path: Path, base: Name, keys: dict[str, object], windows: set[int]
) -> None:
    write_config(tmp_path, base, **keys)
    _, info, _ = plan_and_model(str(tmp_path), silent)
    assert set(info.windows) == windows
    assert cache_of(info, "bf16").has_windows == (windows != {0})


def test_the_head_dim_is_the_configs_own(tmp_path: Path) -> None:
    write_config(tmp_path, hidden_size=64, num_attention_heads=4, num_key_value_heads=2, head_dim=32)
    _, info, _ = plan_and_model(str(tmp_path / "config.json"), silent)
    assert info.head_dim == 32
    assert cache_of(info, "bf16").bytes_per_token == 2 * 32 * 2 * 32 * 2


def test_layer_types_that_are_too_few_are_refused(tmp_path: Path) -> None:
    write_config(tmp_path, layer_types=["full_attention"])
    with pytest.raises(InputError, match="`layer_types` names 1 layers, and there are 32"):
        plan_and_model(str(tmp_path), silent)


def test_a_tied_head_is_counted_once(tmp_path: Path) -> None:
    tied = json.loads((write_config(tmp_path / "a", "smollm2-135m") / "config.json").read_text())
    assert tied["tie_word_embeddings"] is True
    write_config(tmp_path / "b", "smollm2-135m", tie_word_embeddings=False)
    once, twice = (plan_and_model(str(tmp_path / name), silent)[1] for name in "ab")
    assert twice.parameters - once.parameters == once.embedding_parameters


caches = st.builds(
    lambda layers, heads, dim, dtype, block, window: plain_cache(
        layers, heads, dim, dtype, block, [window * (layer % 2) for layer in range(layers)]
    ),
    st.integers(1, 100),
    st.integers(1, 64),
    st.sampled_from([32, 64, 80, 128, 256]),
    dtypes,
    st.sampled_from([1, 16, 32, 64]),
    st.integers(0, 5000),
)


@given(cache=caches, tokens=st.integers(1, 200_000))
def test_pages_hold_a_request_and_waste_less_than_one_each(cache: Cache, tokens: int) -> None:
    full = cache.request_bytes(tokens)
    assert tokens * cache.bytes_per_token <= full + 1
    assert full <= (tokens + cache.tokens_per_block - 1) * cache.bytes_per_token + 1
    assert cache.request_bytes(tokens, "window") <= full


@given(cache=caches, tokens=st.integers(10_000, 100_000), more=st.integers(0, 10_000))
def test_past_its_windows_a_request_grows_by_the_other_layers_alone(cache: Cache, tokens: int, more: int) -> None:
    block = cache.tokens_per_block
    tokens, more = tokens // block * block, more // block * block
    grown = cache.request_bytes(tokens + more, "window") - cache.request_bytes(tokens, "window")
    assert grown == pytest.approx(more * cache.bytes_per_token_past_windows, abs=2)


@given(cache=caches, pool=st.integers(0, 10**12), tokens=st.integers(1, 10_000))
def test_a_pool_holds_what_fits_and_not_one_more(cache: Cache, pool: int, tokens: int) -> None:
    held, one = cache.requests_in(pool, tokens), cache.request_bytes(tokens)
    assert held * one <= pool < (held + 1) * one


@given(tensor=st.sampled_from([1, 2, 4, 8]), pipeline=st.sampled_from([1, 2, 4]), dtype=dtypes)
def test_gpus_together_hold_all_of_the_cache_once(tensor: int, pipeline: int, dtype: str) -> None:
    info = _LLAMA
    split = cache_of(info, dtype, 32, Split(tensor, pipeline))
    assert split.bytes_per_token * tensor * pipeline == cache_of(info, dtype).bytes_per_token


_LLAMA = described("llama-3-8b")


def test_a_type_that_nobody_caches_in_is_refused() -> None:
    with pytest.raises(InputError, match=r"no KV cache in `fp7`. Known: f32, bf16"):
        plain_cache(1, 1, 1, "fp7")
