"""The real gateway and the real Triton under a short load."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conch.triton import TritonServer
    from conch_build.pipeline import BuildResult
    from tests.contract.conftest import Gateway

Run = Callable[..., tuple[int, str, str]]


def test_the_gateway_tells_tokens_hits_and_length(run_cli: Run, gateway: Gateway, sample_build: BuildResult) -> None:
    """Prompts of exact lengths; those after the first find the shared prefix in the cache."""
    engine = str(sample_build.engine.path)
    asked = ("--input-tokens", "40", "--shared-prefix", "128", "--output-tokens", "8", "--engine", engine)
    code, out, told = run_cli("bench", "--url", gateway.url, *asked, "--concurrency", "2", "--rounds", "1", "--json")
    assert code == 0, told
    (row,) = json.loads(out)["rows"]
    assert row["tokens_per_second"] * row["seconds"] == pytest.approx(2 * 8)
    assert row["input_tokens_per_second"] * row["seconds"] == pytest.approx(2 * 168)
    assert row["prefix_hit_share"] == pytest.approx(128 / 168)
    assert 0 < row["roofline_share"] < 1.5


def test_words_have_about_the_length_that_was_asked_for(run_cli: Run, gateway: Gateway) -> None:
    asked = ("--input-tokens", "200", "--output-tokens", "4", "--turns", "2", "--concurrency", "1", "--rounds", "1")
    code, out, told = run_cli("bench", "--url", gateway.url, *asked, "--json")
    assert code == 0, told
    (row,) = json.loads(out)["rows"]
    assert row["requests"] == 2
    assert row["input_tokens_per_second"] * row["seconds"] == pytest.approx(200 + 400, rel=0.2)


def test_a_triton_is_asked_in_token_ids(run_cli: Run, stack_triton: TritonServer, sample_build: BuildResult) -> None:
    asked = ("--input-tokens", "50", "--output-tokens", "12", "--engine", str(sample_build.engine.path))
    url = f"grpc://{stack_triton.grpc_url}"
    code, out, told = run_cli(
        "bench", "--url", url, *asked, "--concurrency", "3", "--cancel", "0.4", "--requests", "9", "--json"
    )
    assert code == 0, told
    (row,) = json.loads(out)["rows"]
    assert row["errors"] == {} and row["cancelled"] + row["answered"] == 18 and row["cancelled"] > 0
    code, _, told = run_cli("bench", "--url", url, *asked, "--model", "nobody")
    assert code == 2 and "no adapter 'nobody'" in told
