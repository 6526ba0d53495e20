"""Calibration texts as NVIDIA's scripts read them: a directory with `train.jsonl`, a `text` a line.

    python3 -m conch_build.calibration_set builtin|FILE OUT SAMPLES CHECKPOINT

One step of a GPU build, on the machine that starts it: the container has no Conch.
"""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

from conch_build.calibration import texts
from conch_build.errors import ConchError, InputError


def write_calibration_set(data: str, out: Path, samples: int, checkpoint: Path) -> None:
    """Write at most so many texts of `data`. `checkpoint`: its chat template, where the texts are conversations.

    Raises InputError when the file does not read, holds nothing, or is to be written by the model itself.
    """
    if data == "self":
        raise InputError(
            "`self` lets the model write its own texts, which the GPU scripts cannot do",
            where="quantization.calibration.data",
            fix="Use `builtin` or a file.",
        )
    tokenizer = None
    if data.endswith(".jsonl"):
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    lines = [json.dumps({"text": text}) for text in itertools.islice(texts(data, tokenizer), samples)]
    if not lines:
        raise InputError("holds no calibration text", where=data, fix="Put text in it, or use `builtin`.")
    out.mkdir(parents=True, exist_ok=True)
    (out / "train.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    try:
        write_calibration_set(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
    except ConchError as error:
        sys.exit(error.message)
