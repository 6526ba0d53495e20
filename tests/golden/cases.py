"""Plans whose whole dry run is kept: five models, three formats, five GPUs, both GPU backends.

A model is its config.json alone. One file a model, backend and format; in it a part for each GPU, which is what a
person gets: the script, or why there is none. Parts that differ in the GPU's name alone are written once.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from conch_build.dry_run import dry_run
from conch_build.errors import CheckError
from conch_build.plan import Plan
from tests.build.configs import CONFIGS

HERE = Path(__file__).parent
EXPECTED = HERE / "expected"

TENSOR = {
    "llama-3-8b": 1,
    "llama-3.3-70b": 4,
    "qwen3-32b": 2,
    "mixtral-8x7b": 2,
    "smollm2-135m": 1,
}
"""Model -> GPUs that its layers are split over."""

BACKENDS = ("tensorrt", "pytorch")
FORMATS = ("fp8", "int4_awq", "nvfp4")
GPUS = ("a100", "l40s", "h100", "h200", "b200")


def names() -> Iterator[tuple[str, str, str]]:
    """Model, backend and format of every file."""
    for model in TENSOR:
        for backend in BACKENDS:
            for form in FORMATS:
                yield model, backend, form


def file_of(model: str, backend: str, form: str) -> Path:
    return EXPECTED / model / f"{backend}-{form}.txt"


def plan_of(model: str, backend: str, form: str, gpu: str) -> Plan:
    engine: dict[str, Any] = {
        "backend": backend,
        "max_num_tokens": 8192,
        "max_seq_len": 8192,
        "kv_cache": {"free_memory_fraction": 0.9},
        "parallel": {"tensor": TENSOR[model]},
    }
    document = {
        "name": model.lower(),
        "model": {"checkpoint": str(CONFIGS / model)},
        "target": {"gpu": gpu, "tensorrt_llm": "1.2.1"},
        "quantization": {"format": form},
        "engine": engine,
    }
    return Plan.model_validate(document)


def rendered(model: str, backend: str, form: str) -> str:
    """The file's whole text."""
    seen: dict[str, str] = {}
    parts = []
    for gpu in GPUS:
        text = _dry_run(plan_of(model, backend, form, gpu))
        alike = text.replace(f'"{gpu}"', '"GPU"')
        parts.append(f"==== {gpu}\n{f'as {seen[alike]}, with its own name' if alike in seen else text}\n")
        seen.setdefault(alike, gpu)
    return "\n".join(parts)


def _dry_run(plan: Plan) -> str:
    """What a person gets, warnings first."""
    said: list[str] = []
    try:
        text = dry_run(plan, out=Path("/conch") / plan.name, say=said.append).text()
    except CheckError as refused:
        text = refused.what
    return "\n".join([*said, text]).replace(str(CONFIGS), "/models")
