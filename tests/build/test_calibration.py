"""Calibration samples: where they come from, how long they are, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from conch_build.calibration import builtin_texts, calibration_samples
from conch_build.errors import InputError
from conch_build.plan import Calibration

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def tokenizer(tiny_llama: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tiny_llama)


@pytest.fixture(scope="module")
def model(tiny_llama: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(tiny_llama).eval()


def texts(samples: list[Any], tokenizer: Any) -> list[str]:
    return [tokenizer.decode(sample) for sample in samples]


def test_the_built_in_texts_are_many_and_all_different() -> None:
    assert len(builtin_texts()) == len(set(builtin_texts())) == 64


def test_samples_are_as_many_and_as_long_as_asked(tokenizer: Any, model: Any) -> None:
    samples = calibration_samples(Calibration(samples=10, max_length=20), tokenizer, model)
    assert len(samples) == 10
    assert {len(sample) for sample in samples} == {20}
    assert all(sample.dtype == torch.int64 for sample in samples)


def test_no_sample_is_longer_than_the_model_reads(tokenizer: Any, model: Any, tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("word " * 5000)
    settings = Calibration(data=str(tmp_path / "long.txt"), max_length=4096)
    assert [len(sample) for sample in calibration_samples(settings, tokenizer, model)] == [512]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("one line\nanother line\n", ["one line", "another line"]),
        ("a paragraph\nof two lines\n\nanother one\n", ["a paragraph\nof two lines", "another one"]),
    ],
)
def test_a_text_file_has_a_sample_a_paragraph_or_a_line(
    tokenizer: Any, model: Any, tmp_path: Path, content: str, expected: list[str]
) -> None:
    (tmp_path / "data.txt").write_text(content)
    samples = calibration_samples(Calibration(data=str(tmp_path / "data.txt")), tokenizer, model)
    assert texts(samples, tokenizer) == expected


def test_a_jsonl_file_has_texts_or_messages(tokenizer: Any, model: Any, tmp_path: Path) -> None:
    records = [{"text": "pl\u2028ain"}, {"messages": [{"role": "user", "content": "hi"}]}]
    lines = [json.dumps(record, ensure_ascii=False) for record in records]
    (tmp_path / "data.jsonl").write_text("\n\n".join(lines))
    samples = calibration_samples(Calibration(data=str(tmp_path / "data.jsonl")), tokenizer, model)
    assert texts(samples, tokenizer) == ["pl\u2028ain", "<|im_start|>user\nhi<|im_end|>\n"]


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("data.jsonl", '{"text": "fine"}\n{"text": 3}\n', "line 2: has neither `text` nor `messages`"),
        ("data.jsonl", "nonsense\n", "line 1: is not JSON"),
        ("data.txt", " \n\n", "holds no calibration text"),
        ("data.txt", None, "cannot be read"),
    ],
)
def test_a_file_that_does_not_read_is_named_with_its_line(
    tokenizer: Any, model: Any, tmp_path: Path, name: str, content: str | None, complaint: str
) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=complaint) as raised:
        calibration_samples(Calibration(data=str(tmp_path / name)), tokenizer, model)
    assert str(tmp_path / name) in raised.value.message


def test_the_model_can_write_its_own_samples_and_writes_the_same_again(tokenizer: Any, model: Any) -> None:
    settings = Calibration(data="self", samples=18, max_length=24)
    first, second = (calibration_samples(settings, tokenizer, model) for _ in range(2))
    assert len(first) == 18
    assert all(2 <= len(sample) <= 24 for sample in first)
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def test_a_sample_of_its_own_ends_at_the_end_token(tokenizer: Any, model: Any) -> None:
    settings = Calibration(data="self", samples=16, max_length=64)
    samples = calibration_samples(settings, tokenizer, model)
    assert any(len(sample) < 64 for sample in samples)
    assert all(2 not in sample[1:-1] for sample in samples)
