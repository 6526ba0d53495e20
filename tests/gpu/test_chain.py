"""The whole chain on a GPU, by each backend: build, serve, chat, and answers like the CPU engine's.

Runs inside NVIDIA's Triton container with `scripts/test -m gpu`; everywhere else it is skipped.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from conch.gpu_check.plans import gpu_plan
from conch.gpu_check.questions import QUESTIONS, TokenIds, ask, ask_streaming, compare
from conch.gpu_check.server import Stack, serve_here
from conch_build.gpu.installed import installed_gpus
from conch_build.pipeline import BuildResult
from tests.conftest import running_triton
from tests.contract.conftest import running_gateway

pytestmark = [pytest.mark.gpu, pytest.mark.slow, pytest.mark.timeout(7200)]
CONCH = (sys.executable, "-m", "conch.cli")


@pytest.fixture(scope="module", params=["tensorrt", "pytorch"])
def stack(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The sample model, built and served by one backend on the first GPU."""
    folder = tmp_path_factory.mktemp(request.param)
    plan = folder / "plan.yaml"
    plan.write_text(gpu_plan("sample", request.param, "none", installed_gpus()[0], "host"))
    stack = serve_here(CONCH, plan, folder / "serve.log", seconds=3600)
    yield stack
    stack.stop(folder / "stop.log")


def test_it_answers_and_streams_the_same(stack: Stack) -> None:
    for question in QUESTIONS:
        answer = ask(stack.url, question)
        assert answer["text"].strip()
        assert answer["finish_reason"] in ("stop", "length")
        assert ask_streaming(stack.url, question)["text"] == answer["text"]


def test_it_answers_much_like_the_cpu_engine(stack: Stack, sample_build: BuildResult, tmp_path: Path) -> None:
    theirs = [ask(stack.url, question) for question in QUESTIONS]
    with running_triton(sample_build, tmp_path) as triton, running_gateway(triton, sample_build.engine.path) as gateway:
        ours = [ask(gateway.url, question) for question in QUESTIONS]
    found = compare(ours, theirs, TokenIds(sample_build.engine.path / "tokenizer"))
    assert found["share"] > 0.25, json.dumps(found)
