"""`conch build` for GPU plans, through the store: small real programs stand where TensorRT-LLM's would.

They write what the real ones write, from the flags that they get, so that all but the tools themselves is exercised.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from conch_build.compile.gpu_stages import check_gpu
from conch_build.compile.run import EXAMPLES_VARIABLE
from conch_build.errors import BuildError, CheckpointError, CompileError, SetupError
from conch_build.gpu.installed import InstalledGpu
from conch_build.manifest import GpuEngineManifest
from conch_build.pipeline import BuildResult, build
from conch_build.plan import Plan
from conch_build.store import Store

CONVERTER = """
import argparse, json, pathlib
flags = argparse.ArgumentParser()
for name in ("model_dir", "output_dir", "dtype", "qformat", "calib_dataset", "calib_size", "calib_max_seq_length"):
    flags.add_argument("--" + name)
flags.add_argument("--kv_cache_dtype")
for name in ("tp_size", "pp_size", "workers"):
    flags.add_argument("--" + name, type=int, default=1)
flags = flags.parse_args()
if flags.calib_dataset:
    texts = (pathlib.Path(flags.calib_dataset) / "train.jsonl").read_text().splitlines()
    assert len(texts) == int(flags.calib_size), len(texts)
out = pathlib.Path(flags.output_dir)
out.mkdir(parents=True)
source = json.loads((pathlib.Path(flags.model_dir) / "config.json").read_text())
ranks = flags.tp_size * flags.pp_size
(out / "config.json").write_text(json.dumps({
    "architecture": source["architectures"][0],
    "dtype": flags.dtype,
    "vocab_size": source["vocab_size"],
    "mapping": {"world_size": ranks, "tp_size": flags.tp_size, "pp_size": flags.pp_size},
    "quantization": {
        "quant_algo": {"fp8": "FP8"}.get(flags.qformat),
        "kv_cache_quant_algo": {"fp8": "FP8"}.get(flags.kv_cache_dtype),
    },
}))
for rank in range(ranks):
    print("Loading checkpoint shards: 100%|###| {0}/{0}".format(rank + 1))
    (out / f"rank{rank}.safetensors").write_bytes(b"weights")
"""

BUILDER = """
import json, pathlib, sys
words = sys.argv[1:]
flags = {word: words[i + 1] for i, word in enumerate(words[:-1]) if word.startswith("--")}
checkpoint, out = pathlib.Path(flags["--checkpoint_dir"]), pathlib.Path(flags["--output_dir"])
out.mkdir(parents=True)
pretrained = json.loads((checkpoint / "config.json").read_text())
modes = {"draft_tokens_external": 2}
(out / "config.json").write_text(json.dumps({
    "version": "1.2.1",
    "pretrained_config": pretrained,
    "build_config": {
        **{name: int(flags["--" + name]) for name in ("max_batch_size", "max_num_tokens")},
        "max_seq_len": int(flags["--max_seq_len"]) + int(flags.get("--max_draft_len", 0)),
        "kv_cache_type": "PAGED",
        "speculative_decoding_mode": modes.get(flags.get("--speculative_decoding_mode"), 1),
        "max_draft_len": int(flags.get("--max_draft_len", 0)),
        "lora_config": {},
        "plugin_config": {
            "remove_input_padding": flags["--remove_input_padding"] == "enable",
            "use_paged_context_fmha": flags["--use_paged_context_fmha"] == "enable",
            "tokens_per_block": int(flags["--tokens_per_block"]),
            "lora_plugin": None,
        },
    },
}))
for rank in range(pretrained["mapping"]["world_size"]):
    (out / f"rank{rank}.engine").write_bytes(b"engine")
print("[TRT-LLM] [I] Total time of building all engines: 00:00:01")
"""

TOKENIZER_INFO = """
import pathlib, sys
pathlib.Path(sys.argv[4], "xgrammar_tokenizer_info.json").write_text("{}")
"""


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """A machine with TensorRT-LLM's programs; `tools(name, program)` replaces one."""
    monkeypatch.setenv("CONCH_HOME", str(tmp_path / "home"))
    programs, examples = tmp_path / "bin", tmp_path / "examples"
    before = os.environ["PATH"]
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setenv(EXAMPLES_VARIABLE, str(examples))

    def write(name: str, program: str) -> None:
        path = (examples if name.endswith(".py") else programs) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!{sys.executable}\n{program}")
        path.chmod(0o755)

    write("trtllm-build", BUILDER)
    write("models/core/llama/convert_checkpoint.py", CONVERTER)
    write("quantization/quantize.py", CONVERTER)
    write("generate_xgrammar_tokenizer_info.py", TOKENIZER_INFO)
    (programs / "python3").symlink_to(sys.executable)
    (programs / "install").symlink_to(shutil.which("install", path=before) or "install")
    (tmp_path / "site" / "tensorrt_llm").mkdir(parents=True)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    return write


def plan_of(checkpoint: Path, **changes: Any) -> Plan:
    document: dict[str, Any] = {
        "name": "tiny",
        "model": {"checkpoint": str(checkpoint)},
        "target": {"gpu": "h100"},
        "quantization": {"format": "none"},
        **changes,
    }
    engine = {"backend": "tensorrt", "max_seq_len": 128, "max_num_tokens": 128, "max_batch_size": 4}
    document["engine"] = {**engine, **changes.get("engine", {})}
    return Plan.model_validate(document)


Tools = Callable[[str, str], None]


def built(plan: Plan, tmp_path: Path, said: list[str] | None = None) -> BuildResult:
    return build(plan, Store(tmp_path / "store"), say=(said if said is not None else []).append)


def test_an_engine_is_built_read_back_and_packed(tools: Tools, tiny_llama: Path, tmp_path: Path) -> None:
    said: list[str] = []
    result = built(plan_of(tiny_llama), tmp_path, said)
    engine = result.engine.path
    assert (engine / "engine" / "rank0.engine").is_file()
    assert (engine / "tokenizer" / "tokenizer.json").is_file()
    assert (engine / "xgrammar_tokenizer_info.json").is_file()
    manifest = GpuEngineManifest.load(engine)
    assert (manifest.tensorrt_llm, manifest.dtype) == ("1.2.1", "bfloat16")
    assert manifest.checkpoint.sha256 == result.checkpoint.sha256
    config = (result.repository.path / "tensorrt_llm" / "config.pbtxt").read_text()
    assert str(engine / "engine") in config
    assert any(line.startswith("engine of llama: done in") for line in said)
    log = (tmp_path / "home" / "logs" / "tiny-build.log").read_text()
    assert "Total time of building all engines" in log


def test_another_batch_size_is_another_engine_of_the_same_checkpoint(
    tools: Tools, tiny_llama: Path, tmp_path: Path
) -> None:
    built(plan_of(tiny_llama), tmp_path)
    again = built(plan_of(tiny_llama), tmp_path)
    assert all(artifact.reused for artifact in again.artifacts)
    larger = built(plan_of(tiny_llama, engine={"max_batch_size": 8}), tmp_path)
    assert [artifact.reused for artifact in larger.artifacts] == [True, False, False]


def test_ranks_and_calibration_reach_the_tools(tools: Tools, tiny_llama: Path, tmp_path: Path) -> None:
    quantization = {"format": "fp8", "calibration": {"samples": 5}}
    result = built(plan_of(tiny_llama, quantization=quantization, engine={"parallel": {"tensor": 2}}), tmp_path)
    assert sorted(path.name for path in (result.engine.path / "engine").glob("rank*")) == [
        "rank0.engine",
        "rank1.engine",
    ]
    assert GpuEngineManifest.load(result.engine.path).kv_cache.dtype == "fp8"


def test_a_draft_model_is_built_beside_its_target(tools: Tools, tiny_llama: Path, tmp_path: Path) -> None:
    speculation = {"method": "draft", "checkpoint": str(tiny_llama), "max_draft_len": 3}
    result = built(plan_of(tiny_llama, engine={"speculation": speculation}), tmp_path)
    draft = GpuEngineManifest.load(result.engine.path / "draft")
    assert draft.speculation.method == "none"
    assert (result.engine.path / "draft" / "engine" / "rank0.engine").is_file()
    assert (result.repository.path / "tensorrt_llm_draft" / "config.pbtxt").is_file()


def test_an_engine_that_is_not_what_was_asked_for_is_no_artifact(
    tools: Tools, tiny_llama: Path, tmp_path: Path
) -> None:
    tools("trtllm-build", BUILDER.replace('"1.2.1"', '"1.1.0"').replace('"PAGED"', '"CONTINUOUS"'))
    with pytest.raises(CompileError, match=r"built by TensorRT-LLM 1\.1\.0.*kv_cache_type is continuous"):
        built(plan_of(tiny_llama), tmp_path)
    assert not list((tmp_path / "store" / "engine").glob("*"))
    assert list((tmp_path / "store" / "quantized").glob("*")), "the checkpoint was converted and stays"


def test_a_tool_that_fails_leaves_nothing_and_says_why(tools: Tools, tiny_llama: Path, tmp_path: Path) -> None:
    tools("models/core/llama/convert_checkpoint.py", "raise SystemExit('torch.OutOfMemoryError: CUDA out of memory')")
    with pytest.raises(BuildError, match="the GPU's memory is full"):
        built(plan_of(tiny_llama), tmp_path)
    assert not list((tmp_path / "store").glob("*/*tiny*"))


def test_a_machine_that_can_build_nothing_says_so_before_it_reads_weights(
    tmp_path: Path, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONCH_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SetupError, match=r"neither docker nor .*trtllm-build.*--dry-run"):
        built(plan_of(tiny_llama), tmp_path)
    assert not (tmp_path / "store").exists()


def test_an_engine_is_built_on_the_kind_of_gpu_that_runs_it(tiny_llama: Path) -> None:
    plan = plan_of(tiny_llama)
    check_gpu(plan, [InstalledGpu("NVIDIA H100 80GB HBM3", 81559 << 20, 90, "590.44.01")])
    check_gpu(plan, [])
    with pytest.raises(SetupError, match=r"has NVIDIA L4 \(SM89\), and an engine for H100 SXM \(SM90\)"):
        check_gpu(plan, [InstalledGpu("NVIDIA L4", 23034 << 20, 89, "590.44.01")])


def llm_api(tiny_llama: Path, **changes: Any) -> Plan:
    engine = {"backend": "pytorch", "kv_cache": {"free_memory_fraction": 0.8}, **changes.pop("engine", {})}
    return plan_of(tiny_llama, engine=engine, **changes)


def test_the_llm_api_gets_its_arguments_beside_the_checkpoint_and_needs_no_tools(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONCH_HOME", str(tmp_path / "home"))
    result = built(llm_api(tiny_llama), tmp_path)
    engine = result.engine.path
    assert yaml.safe_load((engine / "llm_args.yaml").read_text())["max_batch_size"] == 4
    assert (engine / "checkpoint").resolve() == (result.quantized.path / "checkpoint").resolve()
    assert (engine / "checkpoint" / "config.json").is_file() and (engine / "tokenizer" / "tokenizer.json").is_file()
    assert GpuEngineManifest.load(engine).backend == "pytorch"
    assert (result.repository.path / "tensorrt_llm" / "config.pbtxt").is_file()


def test_workers_that_serve_without_triton_get_their_files_in_its_place(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONCH_HOME", str(tmp_path / "home"))
    result = built(llm_api(tiny_llama, serving={"disaggregated": {}}), tmp_path)
    files = {path.name for path in result.repository.path.iterdir()}
    assert files == {"context.yaml", "generation.yaml", "proxy.yaml", "disagg.sh", "manifest.json"}
    assert str(result.engine.path / "checkpoint") in (result.repository.path / "disagg.sh").read_text()


def test_a_checkpoint_without_weights_can_be_printed_but_not_built(
    tools: Tools, tiny_llama: Path, tmp_path: Path
) -> None:
    described = tmp_path / "described"
    described.mkdir()
    config = json.loads((tiny_llama / "config.json").read_text())
    (described / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="weights"):
        built(plan_of(described), tmp_path)
