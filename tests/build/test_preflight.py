"""Every rule of `conch check`, broken and kept."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from conch_build.checkpoint import resolve
from conch_build.errors import CheckError
from conch_build.machine import memory_bytes
from conch_build.model_info import ModelInfo
from conch_build.plan import Model, Plan, parse_plan
from conch_build.preflight import Violation, backend, check, raise_for
from conch_build.preflight.registry import find
from conch_build.sizing import (
    blocks_for,
    group_sizes_for,
    kv_bytes_per_token,
    kv_pool_blocks,
)
from tests.build.conftest import EditJson
from tests.build.tiny import write_tiny


def plan_for(checkpoint: Path | str, **parts: Any) -> Plan:
    """A plan whose `engine` fits the tiny model unless a test says otherwise."""
    engine = {"max_seq_len": 512, **parts.pop("engine", {})}
    data = {"name": "tiny", "model": {"checkpoint": str(checkpoint)}, "engine": engine, **parts}
    return parse_plan(yaml.safe_dump(data))


def found(checkpoint: Path | str, **parts: Any) -> dict[str, Violation]:
    return {violation.rule: violation for violation in check(plan_for(checkpoint, **parts))}


def found_for(info: ModelInfo, **parts: Any) -> dict[str, Violation]:
    plan = plan_for("unread", **parts)
    return {violation.rule: violation for violation in find({"plan": plan, "info": info}, plan.engine.backend)}


@pytest.fixture(autouse=True)
def cpu_with_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rules are tested, not the CPU below them."""
    monkeypatch.setattr(backend, "has_bf16", lambda: True)


@pytest.fixture(scope="module")
def tiny_info(tiny_llama: Path) -> ModelInfo:
    return resolve(Model(checkpoint=str(tiny_llama))).info


def test_a_plan_that_works_has_no_violation(tiny_llama: Path) -> None:
    assert check(plan_for(tiny_llama)) == []


BROKEN: list[tuple[str, str, dict[str, Any]]] = [
    ("speculation.method", "engine.speculation.method", {"engine": {"speculation": {"method": "eagle3"}}}),
    ("speculation.method", "engine.speculation.method", {"engine": {"speculation": {"method": "lookahead"}}}),
    ("speculation.checkpoint", "engine.speculation.checkpoint", {"engine": {"speculation": {"method": "draft"}}}),
    (
        "speculation.checkpoint",
        "engine.speculation.checkpoint",
        {"engine": {"speculation": {"method": "ngram", "checkpoint": "some/model"}}},
    ),
    (
        "speculation.max-draft-len",
        "engine.speculation.max_draft_len",
        {"engine": {"speculation": {"method": "ngram", "max_draft_len": 2048}}},
    ),
    (
        "speculation.ngram-size",
        "engine.speculation.max_matching_ngram_size",
        {"engine": {"speculation": {"method": "ngram", "max_matching_ngram_size": 17}}},
    ),
    ("limits.memory", "engine.kv_cache.size", {"engine": {"kv_cache": {"concurrency": 1 << 30}}}),
    ("backend.parallel", "engine.parallel", {"engine": {"parallel": {"tensor": 2}}}),
    ("backend.parallel", "engine.parallel", {"engine": {"parallel": {"pipeline": 2}}}),
    ("backend.kv-dtype", "quantization.kv_cache", {"quantization": {"kv_cache": "fp8"}}),
    ("backend.kv-dtype", "quantization.kv_cache", {"quantization": {"kv_cache": "int8"}}),
    ("backend.fp16", "engine.precision", {"engine": {"precision": "fp16"}}),
    ("plan.gpu-keys", "engine.build_args", {"engine": {"build_args": {"gemm_plugin": "auto"}}}),
    ("plan.gpu-keys", "engine.llm_args", {"engine": {"llm_args": {"stream_interval": 1}}}),
    ("plan.gpu-keys", "serving.triton.instances", {"serving": {"triton": {"instances": 2}}}),
    *(
        ("disaggregated.cpu", f"serving.disaggregated.{where}", {"serving": {"disaggregated": split}})
        for where, split in (
            ("port", {"port": 9000}),
            ("router", {"router": "load_balancing"}),
            ("hosts", {"hosts": ["a", "b"]}),
            ("context.tensor", {"context": {"tensor": 2}}),
            ("generation.llm_args", {"generation": {"llm_args": {"stream_interval": 2}}}),
        )
    ),
    (
        "disaggregated.cpu",
        "serving.disaggregated",
        {"serving": {"disaggregated": {}}, "engine": {"speculation": {"method": "ngram"}}},
    ),
    (
        "backend.kv-dtype",
        "quantization.kv_cache",
        {"engine": {"precision": "f32"}, "quantization": {"kv_cache": "bf16"}},
    ),
    (
        "backend.kv-dtype",
        "quantization.kv_cache",
        {"engine": {"precision": "bf16"}, "quantization": {"kv_cache": "f32"}},
    ),
    ("backend.block-size", "engine.kv_cache.tokens_per_block", {"engine": {"kv_cache": {"tokens_per_block": 16}}}),
    ("backend.block-size", "engine.kv_cache.tokens_per_block", {"engine": {"kv_cache": {"tokens_per_block": 64}}}),
    ("quant.nvfp4-needs-cuda", "quantization.format", {"quantization": {"format": "nvfp4"}}),
    ("quant.format-unavailable", "quantization.format", {"quantization": {"format": "w4a8_awq"}}),
    (
        "quant.group-size",
        "quantization.group_size",
        {"quantization": {"format": "int4_awq", "group_size": 128}},
    ),
    ("limits.seq-len", "engine.max_seq_len", {"engine": {"max_seq_len": 513}}),
    (
        "limits.num-tokens-below-batch",
        "engine.max_num_tokens",
        {"engine": {"max_num_tokens": 63, "max_batch_size": 64}},
    ),
    (
        "limits.unchunked-prefill",
        "engine.max_num_tokens",
        {"engine": {"chunked_prefill": False, "max_num_tokens": 510}},
    ),
    ("limits.kv-pool", "engine.kv_cache.size", {"engine": {"kv_cache": {"size": "98303B"}}}),
    ("limits.memory", "engine.kv_cache.size", {"engine": {"kv_cache": {"size": "900TiB"}}}),
    ("serving.layout", "serving.triton.layout", {"serving": {"triton": {"layout": "llmapi"}}}),
    ("serving.port-clash", "serving.gateway.port", {"serving": {"gateway": {"port": 8000}}}),
]


@pytest.mark.parametrize(("rule", "where", "parts"), BROKEN, ids=[f"{r}-{i}" for i, (r, _, _) in enumerate(BROKEN)])
def test_a_broken_rule_is_named_with_its_key_and_a_fix(
    tiny_llama: Path, rule: str, where: str, parts: dict[str, Any]
) -> None:
    violations = found(tiny_llama, **parts)
    assert list(violations) == [rule]
    violation = violations[rule]
    assert (violation.where, violation.severity) == (where, "error")
    assert violation.message and violation.fix


KEPT: list[dict[str, Any]] = [
    {"quantization": {"format": "int8"}},
    {"quantization": {"format": "int8_sq"}},
    {"quantization": {"format": "fp8"}},
    {"quantization": {"format": "int4_awq"}},
    {"quantization": {"format": "int4_awq", "group_size": 8}},
    {"engine": {"max_seq_len": 512, "chunked_prefill": False, "max_num_tokens": 511}},
    {"engine": {"max_num_tokens": 64, "max_batch_size": 64}},
    {"engine": {"kv_cache": {"size": "98304B"}}},
    {"engine": {"precision": "f32"}, "quantization": {"kv_cache": "f32"}},
    {"engine": {"precision": "bf16"}, "quantization": {"kv_cache": "bf16"}},
    {"engine": {"precision": "bf16"}, "quantization": {"kv_cache": "u8"}},
    {"quantization": {"kv_cache": "bf16"}},
    {"engine": {"kv_cache": {"tokens_per_block": 32}}, "quantization": {"kv_cache": "f32"}},
    {"engine": {"speculation": {"method": "ngram", "max_draft_len": 2047}}},
    {"engine": {"speculation": {"method": "ngram", "max_matching_ngram_size": 16}}},
    {"engine": {"kv_cache": {"concurrency": 1}}},
    {"engine": {"kv_cache": {"free_memory_fraction": 0.1}}},
    {"engine": {"lora": {"max_rank": 16}, "speculation": {"method": "none"}}},
    {"serving": {"gateway": {"host": "::1"}}},
    {"serving": {"gateway": {"host": "localhost", "port": 0}, "triton": {"http_port": 0, "grpc_port": 0}}},
    {"serving": {"triton": {"layout": "tokens"}}},
]


@pytest.mark.parametrize("parts", KEPT, ids=str)
def test_a_rule_that_is_just_kept_says_nothing(tiny_llama: Path, parts: dict[str, Any]) -> None:
    assert found(tiny_llama, **parts) == {}


def test_all_violations_come_at_once(tmp_path: Path) -> None:
    violations = found(
        tmp_path / "missing",
        engine={"parallel": {"tensor": 2}, "max_num_tokens": 1},
        quantization={"format": "nvfp4", "calibration": {"data": str(tmp_path / "none.txt")}},
        serving={"gateway": {"host": "0.0.0.0"}},
    )
    assert set(violations) == {
        "backend.parallel",
        "limits.num-tokens-below-batch",
        "quant.nvfp4-needs-cuda",
        "calibration.file",
        "serving.public-host",
        "checkpoint.not-found",
    }


def test_raise_for_carries_every_violation_and_lets_warnings_pass() -> None:
    warning = Violation("a", "odd", "Look.", "warning", rule="odd")
    raise_for([])
    raise_for([warning])
    with pytest.raises(CheckError) as caught:
        raise_for([warning, Violation("b", "bad", "Mend it.", rule="bad")])
    assert [violation["rule"] for violation in caught.value.violations] == ["odd", "bad"]
    assert "1 problem" in caught.value.message and "[bad] b: bad. Mend it." in caught.value.message


# Checkpoint


def test_each_problem_of_the_checkpoint_is_a_violation_of_its_own(checkpoint: Path) -> None:
    os.truncate(checkpoint / "model.safetensors", 5000)
    (checkpoint / "tokenizer.json").write_bytes(b"")
    violations = found(checkpoint)
    assert set(violations) == {"checkpoint.truncated", "checkpoint.empty-file"}
    assert all(violation.where == "model.checkpoint" for violation in violations.values())


def test_a_checkpoint_that_cannot_be_read_is_named(checkpoint: Path, edit_json: EditJson) -> None:
    edit_json(checkpoint / "config.json", quantization_config={"quant_method": "bitsandbytes"})
    assert "bitsandbytes" in found(checkpoint)["checkpoint.quant-method"].message
    edit_json(checkpoint / "config.json", quantization_config={"quant_method": "gptq", "bits": 5, "group_size": 32})
    assert "checkpoint.quantization" in found(checkpoint)
    (checkpoint / "model.safetensors").unlink()
    (checkpoint / "model.safetensors").mkdir()
    assert "cannot be read" in found(checkpoint)["checkpoint.unreadable"].message


def test_no_chat_template_is_a_warning(checkpoint: Path) -> None:
    (checkpoint / "chat_template.jinja").unlink()
    assert found(checkpoint)["model.no-chat-template"].severity == "warning"


def test_no_end_token_is_a_warning(tiny_info: ModelInfo) -> None:
    silent = dataclasses.replace(tiny_info, end_ids=())
    assert found_for(silent)["model.no-end-token"].severity == "warning"
    assert found_for(dataclasses.replace(tiny_info, end_ids=(0,))) == {}


def test_a_tied_head_that_differs_is_a_warning(checkpoint: Path, edit_json: EditJson) -> None:
    edit_json(checkpoint / "config.json", tie_word_embeddings=True)
    assert found(checkpoint)["model.oddity"].severity == "warning"


def test_bf16_needs_a_cpu_that_has_it(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "has_bf16", lambda: False)
    for key, plan in (
        ("engine.precision", {"engine": {"precision": "bf16"}}),
        ("quantization.kv_cache", {"quantization": {"kv_cache": "bf16"}}),
    ):
        violations = found(tiny_llama, **plan)
        assert list(violations) == ["backend.bf16"]
        assert violations["backend.bf16"].where == key and "f32" in violations["backend.bf16"].fix
    assert found(tiny_llama, engine={"precision": "f32"}) == {}


def test_a_sequence_may_be_longer_than_the_attention_window(tmp_path: Path) -> None:
    assert found(write_tiny(tmp_path, "mistral", sliding_window=128)) == {}


@pytest.mark.parametrize(("kind", "works"), [("dynamic", False), ("longrope", True), ("llama3", True)])
def test_rope_scaling_must_not_depend_on_the_prompt(tiny_info: ModelInfo, kind: str, works: bool) -> None:
    info = dataclasses.replace(tiny_info, rope={"theta": 1e4, "scaling": {"rope_type": kind}})
    assert ("backend.rope" not in found_for(info)) == works


def test_longrope_frequencies_for_long_sequences_are_announced(tiny_info: ModelInfo) -> None:
    scaling = {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [2.0]}
    info = dataclasses.replace(tiny_info, rope={"theta": 1e4, "scaling": scaling}, trained_positions=64)
    violation = found_for(info, engine={"max_seq_len": 65})["backend.longrope"]
    assert violation.severity == "warning" and "at most 64" in violation.fix
    assert found_for(info, engine={"max_seq_len": 64}) == {}


@pytest.mark.parametrize(("format", "works"), [("none", True), ("int8", True), ("int4_awq", False), ("fp8", False)])
def test_experts_are_quantized_to_8_bits_or_not_at_all(tiny_info: ModelInfo, format: str, works: bool) -> None:
    info = dataclasses.replace(tiny_info, num_experts=4)
    assert ("quant.experts" not in found_for(info, quantization={"format": format})) == works


# Group sizes


def test_group_size_tells_the_layers_and_the_sizes_that_fit(tiny_info: ModelInfo) -> None:
    info = dataclasses.replace(tiny_info, hidden_size=576, num_attention_heads=9, head_dim=64, intermediate_size=1536)
    violation = found_for(info, quantization={"format": "int4_awq", "group_size": 128})["quant.group-size"]
    assert "q_proj" in violation.message and "576" in violation.message
    assert "down_proj" not in violation.message
    assert violation.fix == "Sizes that fit: 64, 32, 16."
    assert found_for(info, quantization={"format": "int4_awq", "group_size": 64}) == {}
    assert found_for(info, quantization={"format": "int4_awq"}) == {}


def test_a_width_that_no_group_size_divides_is_refused(tiny_info: ModelInfo) -> None:
    info = dataclasses.replace(tiny_info, intermediate_size=100)
    violation = found_for(info, quantization={"format": "int4_awq"})["quant.group-size"]
    assert "down_proj: 100" in violation.message and "int8" in violation.fix


# Calibration file


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.txt", None, "No such file"),
        ("a.txt", b" \n\n", "is empty"),
        ("a.jsonl", b"", "is empty"),
        ("a.txt", b"\xff\xfe", "not UTF-8"),
        ("a.csv", b"text", "neither .txt nor .jsonl"),
        ("a.jsonl", b'{"text": "a"}\n{"prompt": "b"}\n', "line 2 has neither `text` nor `messages`"),
        ("a.jsonl", b'{"text": "a"}\n\n{"text": 3}\n', "line 3 has neither"),
        ("a.jsonl", b'{"messages": []}\n', "line 1 has neither"),
        ("a.jsonl", b'{"messages": "hello"}\n', "line 1 has neither"),
        ("a.jsonl", b'{"text": "a"\n', "line 1 is not JSON"),
        ("a.jsonl", b"[1]\n", "line 1 has neither"),
    ],
)
def test_an_unusable_calibration_file_is_refused(
    tiny_llama: Path, tmp_path: Path, name: str, content: bytes | None, words: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    violations = found(tiny_llama, quantization={"calibration": {"data": str(tmp_path / name)}})
    assert words in violations["calibration.file"].message
    assert str(tmp_path / name) in violations["calibration.file"].message


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.txt", "one\n"),
        ("a.jsonl", json.dumps({"text": "one", "more": 1}) + "\n\n"),
        ("a.jsonl", json.dumps({"messages": [{"role": "user", "content": "one"}]}) + "\n" + '{"text": "two"}'),
        ("a.jsonl", '{"text": "a line separator \u2028 within a record"}\n'),
    ],
)
def test_a_usable_calibration_file_passes(tiny_llama: Path, tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    assert found(tiny_llama, quantization={"calibration": {"data": str(tmp_path / name)}}) == {}


def test_fewer_calibration_texts_than_samples_are_a_warning(tiny_llama: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n\ntwo\n\nthree\n")
    calibration = {"data": str(tmp_path / "a.txt"), "samples": 4}
    violation = found(tiny_llama, quantization={"format": "fp8", "calibration": calibration})["calibration.file"]
    assert violation.severity == "warning"
    assert "holds 3 texts, fewer than the 4 of `samples`" in violation.message
    for settings in ({"format": "fp8", "calibration": {**calibration, "samples": 3}}, {"calibration": calibration}):
        assert found(tiny_llama, quantization=settings) == {}


def test_what_only_some_commands_read_is_not_in_vain(tiny_llama: Path) -> None:
    assert found(tiny_llama, slo={"ttft_p95": "100ms"}, cost={"instance_hourly_usd": 1}) == {}


@pytest.mark.parametrize("host", ["0.0.0.0", "example.org"])
def test_a_public_gateway_with_a_certificate_is_in_order(tiny_llama: Path, host: str) -> None:
    public = {"host": host}
    violation = found(tiny_llama, serving={"gateway": public})["serving.public-host"]
    assert (violation.severity, "in the clear" in violation.message) == ("warning", True)
    assert found(tiny_llama, serving={"gateway": {**public, "tls": {"certificate": "server.pem"}}}) == {}


@pytest.mark.parametrize(
    ("where", "parts"),
    [
        ("quantization.group_size", {"quantization": {"format": "int8", "group_size": 128}}),
        ("engine.speculation.max_draft_len", {"engine": {"speculation": {"max_draft_len": 9}}}),
        ("engine.speculation.max_matching_ngram_size", {"engine": {"speculation": {"max_matching_ngram_size": 2}}}),
        ("engine.lora.max_rank", {"engine": {"lora": {"max_rank": 8}}}),
        ("engine.lora.max_loaded", {"engine": {"lora": {"max_loaded": 8}}}),
    ],
)
def test_a_key_whose_part_is_off_is_told_to_do_nothing(tiny_llama: Path, where: str, parts: dict[str, Any]) -> None:
    violations = check(plan_for(tiny_llama, **parts))
    assert [(v.rule, v.where, v.severity) for v in violations] == [("plan.unused", where, "warning")]


def test_a_folder_is_no_calibration_file(tiny_llama: Path, tmp_path: Path) -> None:
    (tmp_path / "folder.txt").mkdir()
    data = {"calibration": {"data": str(tmp_path / "folder.txt")}}
    assert "cannot be read" in found(tiny_llama, quantization=data)["calibration.file"].message


# Sizes


def test_weights_larger_than_the_machine_are_refused(tiny_info: ModelInfo) -> None:
    huge = dataclasses.replace(tiny_info, weight_bytes=memory_bytes() + 1)
    assert found_for(huge)["limits.memory"].where == "model.checkpoint"


def test_kv_bytes_of_the_sample_model() -> None:
    assert kv_bytes_per_token(30, 3, 64, "u8") == 2 * 30 * 3 * (64 + 8)
    assert kv_bytes_per_token(30, 3, 64, "bf16") == 2 * 30 * 3 * 64 * 2
    assert kv_bytes_per_token(30, 3, 64, "f32") == 2 * 30 * 3 * 64 * 4


@given(tokens=st.integers(1, 10**6), block=st.integers(1, 256), token_bytes=st.integers(1, 10**6))
def test_a_pool_of_the_blocks_for_some_tokens_holds_them(tokens: int, block: int, token_bytes: int) -> None:
    blocks = blocks_for(tokens, block)
    assert blocks * block >= tokens > (blocks - 1) * block
    assert kv_pool_blocks(blocks * block * token_bytes, block, token_bytes) == blocks


@given(widths=st.lists(st.integers(1, 10**5), min_size=1))
def test_every_fitting_group_size_divides_every_width(widths: list[int]) -> None:
    assert all(width % size == 0 for size in group_sizes_for(widths) for width in widths)
