"""`conch bench` and GuideLLM on the same server, in turns: the same figures within 5 %.

GuideLLM has an environment of its own: `scripts/peers/guidellm .conch/peers/guidellm` makes it. Without it these tests
are skipped.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from conch_build.pipeline import BuildResult
    from tests.contract.conftest import Gateway

ROOT = Path(__file__).parents[2]
GUIDELLM = ROOT / ".conch/peers/guidellm/bin/guidellm"
AT_ONCE, REQUESTS, PROMPT, ANSWER = 4, 16, 100, 64
ROUNDS = 3
WITHIN = 0.05

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not GUIDELLM.exists(), reason="no GuideLLM in .conch/peers"),
]


@contextmanager
def started(*words: str) -> Iterator[str]:
    """A module that prints its address; its process ends with the block."""
    with subprocess.Popen([sys.executable, "-m", *words], stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()


def by_conch(url: str, model: str, tokenizer: Path, folder: Path, number: int) -> dict[str, float]:
    command = [sys.executable, "-m", "conch.cli", "bench", "--url", url, "--model", model, "--json", "--rounds", "1"]
    command += ["--tokenizer", str(tokenizer), "--input-tokens", str(PROMPT), "--output-tokens", str(ANSWER)]
    command += ["--concurrency", str(AT_ONCE), "--requests", str(REQUESTS), "--seed", str(number)]
    (row,) = json.loads(subprocess.run(command, capture_output=True, check=True, cwd=ROOT).stdout)["rows"]
    names = {"ttft": "ttft_p50_ms", "tpot": "tpot_p50_ms", "e2e": "e2e_p50_ms", "tok/s": "tokens_per_second"}
    return {ours: row[theirs] for ours, theirs in names.items()}


def by_guidellm(url: str, model: str, tokenizer: Path, folder: Path, number: int) -> dict[str, float]:
    saved = folder / f"guidellm-{number}.json"
    command = [str(GUIDELLM), "run", "--disable-console", "--output", f"kind=json,path={saved}"]
    command += ["--backend", f"kind=openai_http,target={url},model={model},request_format=/v1/completions"]
    command += ["--profile", f"kind=concurrent,streams={AT_ONCE}"]
    command += ["--constraint", f"kind=max_requests,count={REQUESTS}"]
    command += ["--tokenizer", f"kind=hf_auto,model={tokenizer}", "--seed", f"kind=static,value={number}"]
    command += ["--data", f"kind=synthetic_text,prompt_tokens={PROMPT},output_tokens={ANSWER}"]
    subprocess.run(command, capture_output=True, check=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    (run,) = json.loads(saved.read_text())["benchmarks"]
    assert run["metrics"]["request_totals"]["errored"] == 0
    names = ("time_to_first_token_ms", "inter_token_latency_ms", "request_latency", "output_token_count")
    metrics: dict[str, Any] = {name: run["metrics"][name]["successful"] for name in names}
    tokens = metrics["output_token_count"]["total_sum"]
    return {
        "ttft": metrics["time_to_first_token_ms"]["median"],
        "tpot": metrics["inter_token_latency_ms"]["median"],
        "e2e": 1e3 * metrics["request_latency"]["median"],
        "tok/s": tokens / run["duration"],
    }


def agree(url: str, model: str, tokenizer: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The medians of rounds in turns."""
    found: dict[str, list[dict[str, float]]] = {"conch": [], "guidellm": []}
    for number in range(ROUNDS):
        found["conch"].append(by_conch(url, model, tokenizer, folder, number))
        found["guidellm"].append(by_guidellm(url, model, tokenizer, folder, number))
    ours, theirs = (middle(rounds) for rounds in found.values())
    with capsys.disabled():
        print()
        for name in ours:
            print(f"{name:6} conch {ours[name]:8.1f}  guidellm {theirs[name]:8.1f}  {ours[name] / theirs[name]:.3f}")
    for name in ours:
        assert ours[name] == pytest.approx(theirs[name], rel=WITHIN), name


def middle(rounds: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: median(one[name] for one in rounds) for name in rounds[0]}


def test_both_see_a_server_of_known_timing_alike(
    sample_build: BuildResult, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with started("conch.bench.traffic.toy", "0.2", "0.02") as url:
        agree(url, "toy", sample_build.engine.path / "tokenizer", tmp_path, capsys)


def test_both_see_the_gateway_alike(
    gateway: Gateway, sample_build: BuildResult, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    agree(gateway.url, "smollm2", sample_build.engine.path / "tokenizer", tmp_path, capsys)
