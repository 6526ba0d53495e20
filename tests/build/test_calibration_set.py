"""Calibration texts as NVIDIA's scripts read them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from conch_build.calibration import builtin_texts
from conch_build.calibration_set import write_calibration_set
from conch_build.errors import InputError


def texts(folder: Path) -> list[str]:
    return [json.loads(line)["text"] for line in (folder / "train.jsonl").read_text().splitlines()]


def test_the_builtin_texts_are_written_a_line_each(tmp_path: Path) -> None:
    write_calibration_set("builtin", tmp_path / "set", 3, tmp_path)
    assert texts(tmp_path / "set") == builtin_texts()[:3]


def test_conversations_are_written_as_the_models_template_has_them(tmp_path: Path, tiny_llama: Path) -> None:
    data = tmp_path / "chats.jsonl"
    data.write_text('{"messages": [{"role": "user", "content": "Hello"}]}\n{"text": "plain"}\n')
    write_calibration_set(str(data), tmp_path / "set", 10, tiny_llama)
    assert texts(tmp_path / "set") == ["<|im_start|>user\nHello<|im_end|>\n", "plain"]


@pytest.mark.parametrize(("data", "said"), [("self", "the GPU scripts cannot"), ("EMPTY", "holds no calibration text")])
def test_what_gives_no_texts_is_refused(tmp_path: Path, data: str, said: str) -> None:
    if data == "EMPTY":
        data = str(tmp_path / "empty.txt")
        Path(data).write_text("\n")
    with pytest.raises(InputError, match=said):
        write_calibration_set(data, tmp_path / "set", 1, tmp_path)
    assert not (tmp_path / "set").exists()


def test_it_is_a_program_that_ends_with_one_sentence(tmp_path: Path) -> None:
    program = [sys.executable, "-m", "conch_build.calibration_set"]
    argv = [*program, "self", str(tmp_path), "1", str(tmp_path)]
    failed = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert failed.returncode == 1
    assert failed.stderr.startswith("quantization.calibration.data: ") and "Traceback" not in failed.stderr
    argv = [*program, "builtin", str(tmp_path / "set"), "2", str(tmp_path)]
    subprocess.run(argv, check=True)
    assert len(texts(tmp_path / "set")) == 2
