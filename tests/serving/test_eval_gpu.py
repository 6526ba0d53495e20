"""Quality of engines for GPUs: asked step by step through the LLM API's model, and refused where there is no GPU."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from conch.evaluation import EngineEvaluator
from conch.evaluation.remote import ServedSubject
from conch.triton import TritonServer
from conch_build.errors import SetupError
from conch_build.pipeline import BuildResult, build
from conch_build.plan import Plan, parse_plan
from conch_build.quality import Task, TopRows
from conch_build.quality.rows import compare
from conch_build.store import Store
from tests.build.tiny import write_tiny
from tests.conftest import what_gpu_tests_lack
from tests.contract.conftest import running_gateway
from tests.serving.test_llmapi_engine import STANDIN

_PLAN = """
name: counting
model: {{checkpoint: {checkpoint}}}
target: {{gpu: h100}}
engine: {{backend: pytorch, max_seq_len: 512}}
quality: {{agreement_min: 0.5}}
serving: {{triton: {{layout: tokens}}}}
"""


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    tiny = write_tiny(tmp_path_factory.mktemp("gpu") / "tiny", dtype="bfloat16")
    return parse_plan(_PLAN.format(checkpoint=tiny))


@pytest.fixture(scope="module")
def built(plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> BuildResult:
    ungated = plan.model_copy(update={"quality": plan.quality.model_copy(update={"agreement_min": None})})
    return build(ungated, Store(tmp_path_factory.mktemp("store")))


@pytest.fixture(scope="module")
def url(built: BuildResult, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A gateway over the LLM API's model, with a package in place of TensorRT-LLM that counts."""
    folder = tmp_path_factory.mktemp("served")
    repository = folder / "repository"
    shutil.copytree(built.repository.path, repository)
    code = repository / "tensorrt_llm" / "1" / "model.py"
    code.write_text(f"import sys\n\nsys.path.insert(0, {str(STANDIN)!r})\n{code.read_text(encoding='utf-8')}")
    ports = {"http_port": 0, "grpc_port": 0, "metrics_port": 0}
    server = TritonServer(repository, **ports, log_path=folder / "triton.log", run_folder=folder / "run")
    server.start()
    try:
        with running_gateway(server, built.engine.path) as gateway:
            yield gateway.url
    finally:
        server.stop(0)


def test_agreement_is_measured_by_what_follows_each_beginning_of_a_text(url: str) -> None:
    subject = ServedSubject(url)
    ids = subject.ids("Hello there, how are you?")[:12]
    (rows,) = subject.rows([ids])
    assert isinstance(rows, TopRows) and rows.log_probs is None
    found = compare([rows], subject.rows([ids]))
    assert (found.tokens, found.agreement, found.perplexity) == (len(rows.tokens), 1, None)


def test_answers_are_asked_for_as_of_any_server(url: str) -> None:
    (answer,) = ServedSubject(url).answers([Task.model_validate({"prompt": "Hello", "max_tokens": 4})])
    assert answer


@pytest.mark.skipif(what_gpu_tests_lack() is None, reason="here it would be measured")
def test_a_gate_that_needs_a_gpu_is_refused_before_anything_is_built(plan: Plan, tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    with pytest.raises(SetupError):
        build(plan, store, evaluator=EngineEvaluator())
    assert store.list() == []
