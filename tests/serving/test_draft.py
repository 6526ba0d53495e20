"""`conch draft PLAN`, from the target's own engine to a folder that a plan can name."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conch.drafting.answers import answers_of
from conch_build.draft import Answer, Prompt
from conch_build.draft.answers import Answers
from conch_build.errors import StoreError
from conch_build.files import read_json
from conch_build.pipeline import BuildResult
from tests.build.exports import info_of
from tests.build.tiny import write_tiny

PLAN = """
name: tiny
model: {checkpoint: target}
quantization: {format: int8}
engine: {max_seq_len: 256, kv_cache: {size: 8MiB}}
"""
QUICK = ("--layers", "1", "--vocab", "64", "--minutes", "0.1")


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    write_tiny(tmp_path / "target", dtype="bfloat16")
    (tmp_path / "conch.yaml").write_text(PLAN)
    return tmp_path / "conch.yaml"


def start(plan: Path, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "conch.cli", "draft", str(plan), *options],
        env={**os.environ, "CONCH_HOME": str(plan.parent / "home"), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def draft(plan: Path, *options: str) -> tuple[int, str, str]:
    """Exit code, stdout, stderr."""
    process = start(plan, *options)
    out, err = process.communicate(timeout=240)
    return process.returncode, out, err


def answer_of(number: int) -> Answer:
    rows = np.zeros((2, 3), np.int32)
    return Answer(Prompt(number, (1, 2), 0.0), rows[:, 0], rows, rows.astype(np.float32))


@pytest.mark.slow
def test_the_command_prints_a_folder_that_a_plan_can_name(plan: Path) -> None:
    code, out, err = draft(plan, *QUICK)
    assert code == 0, err
    folder = Path(out.strip())
    assert info_of(folder).num_layers == 1
    assert "max_draft_len" in err and "held-out" in err
    report = read_json(folder / "draft.json")
    assert len(report["prospects"]) == 6 and report["draft_step_ms"] > 0


@pytest.mark.slow
def test_a_killed_one_goes_on_where_it_was(plan: Path) -> None:
    process = start(plan, "--layers", "1", "--vocab", "64", "--minutes", "60")
    home = plan.parent / "home"
    deadline = time.monotonic() + 120
    while not list(home.glob("drafts/.tiny-*/held-out-answers/*.npz")):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    (work,) = home.glob("drafts/.tiny-*")
    before = [answer.prompt.number for answer in Answers(work / "held-out-answers").load()]

    code, out, err = draft(plan, *QUICK, "--json", "-o", str(plan.parent / "out"))
    assert code == 0, err
    assert json.loads(out)["draft"] == str(plan.parent / "out")
    after = [answer.prompt.number for answer in Answers(work / "held-out-answers").load()]
    assert after[: len(before)] == before and len(set(after)) == len(after)


@pytest.mark.parametrize(
    "content", [b"", b"no answers", b"PK\x03\x04" + bytes(100)], ids=["empty", "text", "cut short"]
)
def test_a_damaged_shard_is_told_by_its_name_and_others_take_its_place(tmp_path: Path, content: bytes) -> None:
    answers = Answers(tmp_path)
    for number in range(3):
        answers.append([answer_of(number)], 1.0)
    (tmp_path / "00001.npz").write_bytes(content)
    with pytest.raises(StoreError, match=r"00001.npz: is damaged.*Remove it"):
        answers.load()
    (tmp_path / "00001.npz").unlink()
    answers.append([answer_of(3)], 1.0)
    assert [answer.prompt.number for answer in answers.load()] == [0, 2, 3]


@pytest.mark.parametrize("size", [0, 1000, None], ids=["empty", "cut short", "other"])
def test_a_damaged_training_state_is_told_by_its_name(tmp_path: Path, size: int | None) -> None:
    import torch

    from conch_build.draft.distil import _restore, _save

    learned = {"weight": torch.nn.Parameter(torch.zeros(50, 50))}
    optimizer, state = torch.optim.AdamW(learned.values()), tmp_path / "training.pt"
    _save(state, learned, optimizer, 1.0, 2, 3)
    assert _restore(state, learned, optimizer) == (1.0, 2, 3)
    state.write_bytes(b"no state" if size is None else state.read_bytes()[:size])
    with pytest.raises(StoreError, match=r"training.pt: is damaged.*Remove it"):
        _restore(state, learned, optimizer)


def test_a_folder_that_holds_something_else_is_left_alone(plan: Path) -> None:
    code, _, err = draft(plan, *QUICK, "-o", str(plan.parent / "target"))
    assert code == 2 and "is no draft" in err and "--output" in err
    assert (plan.parent / "target" / "model.safetensors").is_file()


def test_answers_are_the_targets_own_up_to_the_end_token(sample_build: BuildResult) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(sample_build.engine.path / "tokenizer")
    messages = [{"role": "user", "content": "What is the capital of France? Answer in one word."}]
    ids = tuple(tokenizer.apply_chat_template(messages, add_generation_prompt=True))
    stream = (Prompt(number, ids, 0.7 * (number % 2)) for number in range(4))
    answers = {answer.prompt.number: answer for answer in answers_of(sample_build.engine.path, stream, 60)}
    assert sorted(answers) == [0, 1, 2, 3]
    greedy = answers[0]
    assert greedy.tokens.tolist() == answers[2].tokens.tolist() == greedy.top_ids[:, 0].tolist()
    assert greedy.tokens[-1] in info_of(sample_build.checkpoint.path).end_ids
    assert greedy.top_log_probs.shape == greedy.top_ids.shape == (len(greedy.tokens), 20)
    assert "Paris" in tokenizer.decode(greedy.tokens)


@pytest.mark.slow
def test_acceptance_on_the_sample_rises_with_training(sample_build: BuildResult, tmp_path: Path) -> None:
    import torch

    from conch_build.draft import distil, prune
    from conch_build.draft.prompts import prompts
    from conch_build.draft.report import acceptance

    def answers(held_out: bool, count: int) -> list[Any]:
        from transformers import AutoTokenizer

        known = AutoTokenizer.from_pretrained(sample_build.checkpoint.path)
        stream = islice(prompts(known, held_out=held_out), count)
        return list(answers_of(sample_build.engine.path, stream, 64))

    learned, held_out = answers(False, 96), answers(True, 16)
    kept = torch.arange(4096)
    model = prune.pruned(sample_build.checkpoint.path, 1, kept)
    before = acceptance(distil.matches(model, kept, held_out))
    distil.distil(model, kept, learned, 20.0, tmp_path / "state.pt")
    after = acceptance(distil.matches(model, kept, held_out))
    assert after > before + 0.03, (before, after)
