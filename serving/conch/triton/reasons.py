"""Why a server did not start: the one sentence of its log that matters, as an error with a fix."""

from __future__ import annotations

import re
from pathlib import Path

from conch_build.errors import ServiceError, SetupError

_NOISE = re.compile(r"CudaDriverHelper|CUDA driver version is insufficient")
"""Errors that every server without a GPU logs, and that stop none."""


class UnexplainedError(ServiceError):
    """A start that failed, and nothing says that the next one will: its processes just died."""


def explain(log: str, where: Path) -> SetupError | ServiceError:
    """What the log of a failed start says; `where` is its path."""
    library = re.search(r"error while loading shared libraries: (\S+):", log)
    if library:
        return SetupError(
            f"tritonserver cannot load {library[1]}",
            where=str(where),
            fix="`conch doctor` says what is missing.",
        )
    port = re.search(r"[Ss]ocket '([^']+)' already in use|(\S+:\d+).*[Aa]ddress already in use", log)
    if port:
        return SetupError(f"{port[1] or port[2]} is in use", where=str(where), fix="Choose another port.")
    if "_ARRAY_API not found" in log or "compiled using NumPy 1.x" in log:
        return SetupError("Triton's python backend needs NumPy 1.x", where=str(where), fix="pip install 'numpy<2'")
    crash = re.search(r"terminate called after throwing an instance of '([^']+)'|^(Signal \(\d+\))", log, re.MULTILINE)
    if crash:
        return UnexplainedError(f"tritonserver or a python backend crashed: {crash[1] or crash[2]}", where=str(where))
    model = re.search(r"failed to load '([^']+)' version \d+: (.+?)(?:\\n|\"?$)", log, re.MULTILINE)
    if model:
        reason = re.sub(r"^(\w+: )?(\w*Error: )?", "", model[2].strip())
        kind = UnexplainedError if "is not healthy" in reason else ServiceError
        return kind(f"Triton could not load the model `{model[1]}`: {reason}", where=str(where))
    errors = re.findall(r"^(?:E\d{4} \S+ \d+ \S+ \"?|error: )(.+?)\"?$", log, re.MULTILINE)
    lines = [line for line in errors if not _NOISE.search(line)] or log.strip().splitlines() or ["it logged nothing"]
    return UnexplainedError(f"tritonserver did not start: {lines[-1].strip()}", where=str(where))
