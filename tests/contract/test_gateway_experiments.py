"""Experiments on the running stack: shares, figures, feedback, steering, and a variant that fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.contract.conftest import Gateway, eventually, running_gateway

if TYPE_CHECKING:
    from conch.triton import TritonServer
    from conch_build.pipeline import BuildResult

PLAN = """
name: smollm2
model: {checkpoint: sample}
serving:
  gateway:
    experiments:
      assistant:
        variants: {old: {model: smollm2, weight: 50}, new: {model: smollm2, weight: 50}}
        guard: {failures_in_a_row: 5}
      watched:
        variants: {only: {model: smollm2}}
        shadow: {model: smollm2}
"""
HELLO = [{"role": "user", "content": "Say hello."}]


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ab") / "conch.yaml"
    path.write_text(PLAN + f"    database: {{url: 'sqlite:///{path.parent / 'gateway.db'}'}}\n")
    return path


@pytest.fixture(scope="module")
def dividing(stack_triton: TritonServer, sample_build: BuildResult, plan: Path) -> Iterator[Gateway]:
    with running_gateway(stack_triton, sample_build.engine.path, "--plan", str(plan)) as gateway:
        yield gateway


def ab(plan: Path, *words: str) -> Any:
    command = [sys.executable, "-m", "conch.cli", "ab", *words, "--plan", str(plan), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ})
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def ask(gateway: Gateway, user: str, **fields: Any) -> Any:
    return gateway.ok("chat/completions", model="assistant", messages=HELLO, user=user, max_tokens=2, **fields)


def variant_of(gateway: Gateway, answer: str, score: float = 1.0) -> str:
    """Scoring an answer tells its variant."""
    return str(gateway.ok("feedback", id=answer, score=score)["variant"])


@pytest.mark.conforms("AB-1", "AB-2")
def test_requests_are_shared_out_and_a_user_stays_with_a_variant(dividing: Gateway) -> None:
    answers = {user: ask(dividing, user) for user in map(str, range(12))}
    assert {answer["model"] for answer in answers.values()} == {"assistant"}
    variants = {user: variant_of(dividing, answer["id"]) for user, answer in answers.items()}
    assert set(variants.values()) == {"old", "new"}
    for user, variant in list(variants.items())[:4]:
        assert variant_of(dividing, ask(dividing, user)["id"]) == variant
    listed = {model["id"]: model["parent"] for model in dividing.http.get("/v1/models").json()["data"]}
    assert listed["assistant"] == "smollm2"


@pytest.mark.conforms("AB-3")
def test_feedback_is_taken_once_for_answers_that_are_known(dividing: Gateway) -> None:
    answer = ask(dividing, "critic", stream=True)[0]["id"]
    assert variant_of(dividing, answer, 0.5) in ("old", "new")
    status, again = dividing.post("feedback", {"id": answer, "score": 1})
    assert (status, again["error"]["code"]) == (400, "already_scored")
    status, unknown = dividing.post("feedback", {"id": "chatcmpl-1", "score": 1})
    assert (status, unknown["error"]["code"]) == (404, "answer_not_found")
    status, wrong = dividing.post("feedback", {"id": answer, "score": 2})
    assert (status, wrong["error"]["param"]) == (400, "score")


def test_the_command_shows_figures_and_steers_the_running_gateway(dividing: Gateway, plan: Path) -> None:
    def seen() -> int:
        report = ab(plan, "show", "assistant")["assistant"]
        return sum(part["e2e"]["count"] for part in report["variants"].values() if part["e2e"])

    time.sleep(2)
    before = seen()
    ask(dividing, "me")
    ask(dividing, "me", stream=True)
    assert eventually(lambda: seen() == before + 2, 30)
    assert ab(plan, "promote", "assistant", "new")["weights"] == {"old": 0, "new": 1}
    time.sleep(2)
    chosen = {variant_of(dividing, ask(dividing, user)["id"]) for user in map(str, range(8))}
    assert chosen == {"new"}
    assert ab(plan, "set", "assistant", "old=1", "new=1")["weights"] == {"old": 1, "new": 1}
    texts = [event["text"] for event in ab(plan, "show")["assistant"]["events"]]
    assert texts[0].startswith("old=1") and "promoted" in texts[1]


@pytest.mark.conforms("AB-4")
def test_a_shadow_gets_a_copy_and_nobody_its_answer(dividing: Gateway, plan: Path) -> None:
    fields = {"model": "watched", "messages": HELLO, "max_tokens": 2}
    for stream in (False, True):
        dividing.ok("chat/completions", **fields, stream=stream)
    dividing.ok("completions", model="watched", prompt="Hello", max_tokens=2)
    dividing.ok("responses", model="watched", input="Hello", max_output_tokens=16)

    def seen() -> dict[str, int]:
        variants = ab(plan, "show", "watched")["watched"]["variants"]
        return {name: part["errors"]["count"] for name, part in variants.items() if part["errors"]}

    assert eventually(lambda: seen() == {"only": 4, "shadow": 4}, 30)
    variants = ab(plan, "show", "watched")["watched"]["variants"]
    assert (variants["shadow"]["share"], variants["shadow"]["errors"]["mean"]) == (0, 0)
