"""A tool's failure is told as the sentence that fixes it."""

from __future__ import annotations

import re

import pytest

from conch_build.compile.failures import FAILURES, Failure, explain

LOGS = {
    "no toolkit": (
        'docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].',
        "NVIDIA Container Toolkit",
    ),
    "no daemon": ("Cannot connect to the Docker daemon at unix:///var/run/docker.sock.", "usermod -aG docker"),
    "no image": ("docker: Error response from daemon: manifest for nvcr.io/x:1 not found", "target.container"),
    "old driver": (
        "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=13.1, please update your driver",
        "590.44.01",
    ),
    "no gpu": ("OSError: GPU is required for inference.", "nvidia-smi"),
    "old gpu": ("RuntimeError: CUDA error: no kernel image is available for execution on the device", "Blackwell"),
    "gpu memory": (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 448.00 MiB. GPU 0 has 79.11 GiB",
        "engine.parallel.tensor",
    ),
    "builder memory": ("[TRT] [E] [resizingAllocator.cpp] Out of memory (allocate 4294967296)", "max_num_tokens"),
    "disk": ("OSError: [Errno 28] No space left on device", "CONCH_HOME"),
    "pointer": ("safetensors_rust.SafetensorError: Error while deserializing header: HeaderTooLarge", "git lfs pull"),
    "uncalibrated": (
        "KeyError: 'transformer.layers.0.attention.qkv.activation_scaling_factor'",
        "`quantization.format: fp8`",
    ),
    "flag": ("trtllm-build: error: unrecognized arguments: --use_custom_all_reduce", "engine.build_args"),
    "choice": (
        "trtllm-build: error: argument --gemm_plugin: invalid choice: 'fp9' (choose from 'auto', 'fp8')",
        "engine.build_args",
    ),
    "architecture": ("AssertionError: Unsupported model architecture: GptOssForCausalLM", "engine.backend: pytorch"),
    "shadowed": ("ModuleNotFoundError: No module named 'tensorrt_llm.bindings'", "another directory"),
    "absent": ("ModuleNotFoundError: No module named 'tensorrt_llm'", "container"),
    "script": (
        "python3: can't open file '/app/tensorrt_llm/examples/quantization/quantize.py': [Errno 2] No such file",
        "CONCH_TRTLLM_EXAMPLES",
    ),
    "logits": ("RuntimeError: Gather context logits is not support with draft len > 0.", "gather_context_logits"),
    "profiles": ("RuntimeError: multiple_profiles is enabled, while opt_num_tokens is set.", "opt_num_tokens"),
    "streaming": ("AssertionError: StreamingLLM is not supported any more", "streamingllm"),
    "heads": ("AssertionError: num_attention_heads (9) must be divisible by tp_size (4)", "engine.parallel.tensor"),
    "group": ("AssertionError: Weight shape is not divisible for block size 128: block_size must divide 576", "64"),
    "texts": (
        "NotImplementedError: Unsupported dataset name or local repo directory: /conch/calibration.",
        "CONCH_HOME",
    ),
    "code": ("ValueError: Loading it requires you to execute the configuration file in that repo", "trust_remote_code"),
    "gated": ("huggingface_hub.errors.GatedRepoError: 401 Client Error.", "HF_TOKEN"),
    "release": ("[TensorRT-LLM][ERROR] Serialization assertion stdVersionRead == kSERIALIZATION_VERSION", "--force"),
    "ranks": ("[TensorRT-LLM][ERROR] Assertion failed: MPI world size (1) != engine world size (4)", "conch serve"),
    "rank file": ("RuntimeError: rank3.engine: No such file or directory", "conch serve"),
    "prompt": (
        "[ERROR] Prompt length (9001) exceeds maximum input length (8192). Set log level to info",
        "chunked_prefill: true",
    ),
    "shared memory": ("Failed to increase the shared memory pool size for key 'triton_python_region_1'", "shm-size"),
    "adapter": ("LoRA task 7 not found in cache. Please send LoRA weights with request", "engine.lora.adapters"),
    "draft": ("Draft tokens length exceeds: draft length 8 larger than the engine's 4", "max_draft_len"),
}
"""A line of a log, as public reports have it -> what its explanation must tell."""


@pytest.mark.parametrize("name", LOGS)
def test_a_known_failure_is_told_with_its_fix(name: str) -> None:
    line, said = LOGS[name]
    found = explain(f"[I] starting\nTraceback (most recent call last):\n{line}\n[I] Total time: 00:00:01\n", 1)
    assert found is not None
    assert said in " ".join(found)


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: failure.what)
def test_every_failure_has_a_log_that_shows_it(failure: Failure) -> None:
    assert any(re.search(failure.pattern, line) for line, _ in LOGS.values())


def test_what_the_log_names_is_named_in_the_explanation() -> None:
    assert explain("trtllm-build: error: unrecognized arguments: --max_output_len 5") == (
        "this release does not know --max_output_len 5",
        "Remove it from `engine.build_args`, or set `target.tensorrt_llm` to the release that is installed.",
    )


def test_the_last_cause_wins() -> None:
    what = explain("No space left on device\nCUDA out of memory")
    assert what is not None and what[0] == "the GPU's memory is full"


def test_a_kill_without_words_is_the_machines_memory() -> None:
    found = explain("loading shards", 137)
    assert found is not None and "ran out of memory" in found[0]


def test_ordinary_output_explains_nothing() -> None:
    log = "[I] Serializing engine to out/rank0.engine...\n[W] Option --x is deprecated\nfreeing memory pool\n"
    assert explain(log, 1) is None
