"""What the gateway takes of an engine's tokens/s: a client of the gateway beside a client of Triton, in turns."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conch.triton import TritonServer
    from conch_build.pipeline import BuildResult
    from tests.contract.conftest import Gateway

LEAST = 0.9


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_32_streams_through_the_gateway_lose_a_tenth_at_most(
    gateway: Gateway, stack_triton: TritonServer, sample_build: BuildResult
) -> None:
    command = [sys.executable, "-m", "conch.cli", "bench", "compare", "--json", "--rounds", "3", "--concurrency", "32"]
    command += ["--url-a", f"grpc://{stack_triton.grpc_url}", "--url-b", gateway.url, "--requests", "64"]
    command += ["--engine", str(sample_build.engine.path), "--input-tokens", "64", "--output-tokens", "64"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode in (0, 10, 11), done.stdout + done.stderr
    rows = {row["metric"]: row for row in json.loads(done.stdout)["compared"]}
    found = rows["tokens_per_second"]
    print(f"Triton {found['a']:.0f} tok/s, gateway {found['b']:.0f} tok/s, ratio {found['ratio']['ratio']:.2f}")
    assert found["ratio"]["ratio"] >= LEAST
