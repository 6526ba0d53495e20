"""`conch simulate`, as it is typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from conch.cli import main

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}
PLAN = """
name: llama
model: {{checkpoint: {folder}}}
{target}
engine: {{backend: pytorch, max_batch_size: 128, max_seq_len: 2048}}
"""


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    return written(tmp_path, "target: {gpu: h100}")


def written(folder: Path, target: str) -> Path:
    (folder / "config.json").write_text(json.dumps(CONFIG))
    path = folder / "conch.yaml"
    path.write_text(PLAN.format(folder=folder, target=target))
    return path


def simulate(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, ["simulate", *map(str, arguments)])
    return result.exit_code, result.stdout, result.stderr


def test_sizes_are_answered_with_split_cost_and_what_breaks_first(plan: Path) -> None:
    arguments = (
        plan,
        "--gpus",
        "2",
        "--tensor",
        1,
        "--slo",
        "ttft=1s,itl=50ms",
        "--hourly-usd",
        2.5,
        "--duration",
        "3s",
        "--json",
    )
    code, out, _ = simulate(*arguments)
    assert code == 0
    found = json.loads(out)["choices"]
    assert [(one["gpus"], one["tensor"], one["answering"], one["reading"]) for one in found] in (
        [(2, 1, 2, 0), (2, 1, 1, 1)],
        [(2, 1, 1, 1), (2, 1, 2, 0)],
    )
    assert found[0]["usd_per_hour"] == 5.0
    assert found[0]["requests_per_second"] >= found[1]["requests_per_second"] > 1
    assert found[0]["breaks_first"] in ("queue", "kv", "prefill", "decode", "transfer")


def test_a_run_tells_its_figures_and_repeats_them(plan: Path) -> None:
    arguments = (plan, "--rate", 5, "--requests", 100, "--slo", "ttft=1s", "--json")
    (code, out, _), (_, again, _) = simulate(*arguments), simulate(*arguments)
    assert code == 0
    assert out == again
    row = json.loads(out)
    assert row["answered"] == 100
    assert row["slo_met"] is True
    assert row["breaks_first"] is None
    assert {"ttft_p95_ms", "itl_p95_ms", "e2e_p95_ms", "usd_per_million_tokens", "gateways"} <= row.keys()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--gpus", "8"], "Give --slo ttft=1s,itl=50ms"),
        (["--gpus", "some", "--slo", "ttft=1s"], "no list of numbers of GPUs"),
        (["--gpus", "fewest", "--slo", "ttft=1s"], "needs a rate"),
        (["--gpus", "1", "--tensor", "1", "--slo", "ttft=1ms"], "not kept by 1 GPUs"),
        (["--gpus", "8", "--slo", "ttft=1s", "--input-tokens", "9000"], "do not fit"),
        ([], "there is no traffic"),
        (["--rate", "1", "--concurrency", "2"], "exclude each other"),
        (["--rate", "1", "--scale", "8-1"], "no range of servers"),
        (["--rate", "1", "--gpu", "h1000"], "there is no GPU"),
        (["--trace", "EMPTY"], "the trace is empty"),
    ],
)
def test_wrong_input_gets_a_sentence(plan: Path, tmp_path: Path, arguments: list[str], sentence: str) -> None:
    (tmp_path / "empty.jsonl").write_text("")
    given = [str(tmp_path / "empty.jsonl") if word == "EMPTY" else word for word in arguments]
    code, out, err = simulate(plan, *given)
    assert code == 2
    assert sentence in err
    assert "Traceback" not in err + out


def test_a_plan_without_a_gpu_is_told_to_name_one(tmp_path: Path) -> None:
    code, _, err = simulate(written(tmp_path, ""), "--gpus", "8", "--slo", "ttft=1s")
    assert code == 2
    assert "names no GPU" in err
