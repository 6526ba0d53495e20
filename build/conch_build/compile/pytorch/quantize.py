"""Conch's own quantization as a step of a GPU build, on the machine that starts it.

    python3 -m conch_build.compile.pytorch.quantize CHECKPOINT OUT --format fp8 [--data builtin] [--samples 64] ...

Knows nothing of GPUs.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from conch_build.checkpoint import resolve
from conch_build.errors import ConchError
from conch_build.plan import Calibration, Model, Quantization
from conch_build.quantize import quantize


def main(argv: list[str]) -> None:
    """Quantize. Raises what `quantize` raises."""
    parser = argparse.ArgumentParser(prog="conch_build.compile.pytorch.quantize")
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--format", required=True)
    parser.add_argument("--group-size", type=int)
    parser.add_argument("--data", default="builtin")
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--max-length", type=int, default=512)
    parser.add_argument("--trust-remote-code", action="store_true")
    given = parser.parse_args(argv)
    calibration = Calibration(data=given.data, samples=given.samples, max_length=given.max_length)
    settings = Quantization(format=given.format, group_size=given.group_size or "auto", calibration=calibration)
    model = Model(checkpoint=str(given.checkpoint), trust_remote_code=given.trust_remote_code)
    info = resolve(model, backend="pytorch").info
    given.out.mkdir(parents=True, exist_ok=True)
    quantize(given.checkpoint, given.out, settings, info, trust_remote_code=given.trust_remote_code, say=print)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except ConchError as error:
        sys.exit(error.message)
