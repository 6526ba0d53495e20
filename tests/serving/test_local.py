"""`conch chat --local`: the gateway's answers without a gateway."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from conch.commands.chat import chat
from conch.local import LocalEngine
from conch_build.errors import RequestError
from tests.conftest import SAMPLE_PLAN

if TYPE_CHECKING:
    from conch_build.pipeline import BuildResult
    from tests.contract.conftest import Gateway


def test_the_answer_is_the_gateways(gateway: Gateway, sample_build: BuildResult, tmp_path: Path) -> None:
    plan = tmp_path / "conch.yaml"
    plan.write_text(SAMPLE_PLAN)
    common = ["-m", "What is gravity?", "--temperature", "0", "--max-tokens", "24", "--json"]
    there, here = (
        CliRunner().invoke(chat, [*common, *where]) for where in (["--url", gateway.url], ["--local", str(plan)])
    )
    assert there.exit_code == here.exit_code == 0, here.output
    served, local = json.loads(there.stdout), json.loads(here.stdout)
    assert (local["text"], local["finish_reason"]) == (served["text"], served["finish_reason"])
    assert local["usage"]["prompt_tokens"] == served["usage"]["prompt_tokens"]


def test_an_answer_that_is_left_leaves_the_engine_free_for_the_next(sample_build: BuildResult) -> None:
    local = LocalEngine(sample_build.engine.path)
    try:
        messages = [{"role": "user", "content": "Count to a hundred."}]
        first = iter(local.ask(messages, {"max_tokens": 500, "temperature": 0.0}))
        next(first)
        first.close()  # type: ignore[attr-defined]
        assert local.engine.stats().running == 0
        assert "".join(local.ask(messages, {"max_tokens": 5, "temperature": 0.0}))
        with pytest.raises(RequestError, match="the context ends before an answer"):
            list(local.ask([{"role": "user", "content": "word " * 3000}], {}))
    finally:
        local.close()


def test_a_plan_for_gpus_is_refused_before_anything_is_built(tmp_path: Path) -> None:
    plan = tmp_path / "conch.yaml"
    plan.write_text("{name: m, model: {checkpoint: sample}, target: {gpu: h100}, engine: {backend: pytorch}}")
    done = CliRunner().invoke(chat, ["-m", "x", "--local", str(plan)])
    assert done.exit_code == 2
    assert "only engines for the CPU run in this process" in done.stderr
