"""What others rely on in a stored graph: names of its linear layers, ids of a restricted vocabulary."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from conch.engine import Slot
from conch.engine.runner import OpenVINORunner
from conch_build.compile.openvino import MODEL_FILE
from conch_build.families import linear_layers
from tests.build.compiled import compile_checkpoint
from tests.build.exports import info_of
from tests.build.tiny import write_tiny

torch = pytest.importorskip("torch")
ov = pytest.importorskip("openvino")


def test_each_matmul_bears_the_name_of_its_linear_layer(tiny_llama: Path, tmp_path: Path) -> None:
    compile_checkpoint(tiny_llama, tmp_path / "engine")
    graph = ov.Core().read_model(tmp_path / "engine" / MODEL_FILE)
    names = [node.get_friendly_name() for node in graph.get_ops() if node.get_type_name() == "MatMul"]
    assert sorted(names) == sorted([*linear_layers(info_of(tiny_llama)), "lm_head"])


def test_a_draft_with_part_of_the_vocabulary_answers_with_ids_of_the_whole(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    source = write_tiny(tmp_path / "source")
    whole = OpenVINORunner(tmp_path / "whole", compile_checkpoint(source, tmp_path / "whole"))
    kept = torch.arange(3, 320, 8)
    tensors = load_file(source / "model.safetensors")
    tensors["lm_head.weight"] = tensors["lm_head.weight"][kept].contiguous()
    tensors["d2t"] = kept - torch.arange(len(kept))
    (tmp_path / "draft").mkdir()
    save_file(tensors, tmp_path / "draft" / "model.safetensors")
    (tmp_path / "draft" / "config.json").write_bytes((source / "config.json").read_bytes())
    manifest = compile_checkpoint(source, tmp_path / "part", exported=tmp_path / "draft")
    part = OpenVINORunner(tmp_path / "part", manifest)
    slot = Slot([5, 6, 7], 0, [0], True)
    expected, rows = whole.step([slot]), part.step([slot])
    assert expected is not None and rows is not None
    assert manifest.top_candidates == rows.top_ids.shape[1] == len(kept)
    assert set(rows.top_ids[0]) == set(kept.tolist())
    assert abs(expected.logits[0][rows.top_ids[0]] - rows.top_logits[0]).max() < 2e-6
    assert np.array_equal(rows.logits[0][(rows.top_ids[0] - 3) // 8], rows.top_logits[0])
