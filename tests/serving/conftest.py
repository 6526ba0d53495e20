"""A model repository whose model counts, for what does not depend on a real one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conch_build.pack import pack
from conch_build.plan import parse_plan
from tests.build.models import LLAMA_8B

_ROOT = Path(__file__).parents[2]
_MODEL = """
import sys

sys.path.insert(0, {root!r})
from tests.serving.counting import CountingModel as TritonPythonModel
"""


@pytest.fixture
def counting_repository(tmp_path: Path) -> Path:
    """Token ids only; `engine/broken` beside it makes it fail to load, each `engine/crash*` once die of it."""
    engine = tmp_path / "engine"
    engine.mkdir()
    (engine / "engine.json").write_text(json.dumps({"vocab_size": 1000}))
    plan = parse_plan("{name: counting, model: {checkpoint: sample}, serving: {triton: {layout: tokens}}}")
    repository = tmp_path / "repository"
    pack(engine, repository, plan, LLAMA_8B)
    (repository / "tensorrt_llm" / "1" / "model.py").write_text(_MODEL.format(root=str(_ROOT)))
    return repository
