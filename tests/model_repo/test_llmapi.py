"""The layout `llmapi`: upstream's own model in the image, with its configuration complete in two places."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest
import yaml

from conch_build.errors import BuildError
from conch_build.pack import repository_summary, templates_dir
from tests.build.models import LLAMA_8B
from tests.model_repo.plans import ENGINE, packed, parameters, plan_for
from tests.model_repo.test_pack import declared

UPSTREAM = json.loads((Path(__file__).parent / "upstream.json").read_text())["llmapi"]
LAYOUT = {"layout": "llmapi"}


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    folder = tmp_path / "engine"
    folder.mkdir()
    (folder / "llm_args.yaml").write_text("max_batch_size: 48\nkv_cache_config: {enable_block_reuse: true}\n")
    return folder


def test_batches_and_decoupling_stand_where_a_server_reads_them(engine: Path, tmp_path: Path) -> None:
    (model,) = packed(tmp_path / "out", plan_for("pytorch", triton=LAYOUT), engine).values()
    assert (model.name, model.backend, model.max_batch_size) == ("tensorrt_llm", "python", 0)
    assert model.model_transaction_policy.decoupled
    settings = yaml.safe_load((tmp_path / "out" / "tensorrt_llm" / "1" / "model.yaml").read_text())
    assert settings == {
        "triton_config": {"max_batch_size": 0, "decoupled": True, "cancellation_check_period_ms": 50},
        "model": str(engine / "checkpoint"),
        "max_batch_size": 48,
        "kv_cache_config": {"enable_block_reuse": True},
    }


def test_the_tensors_are_upstreams(engine: Path, tmp_path: Path) -> None:
    (model,) = packed(tmp_path / "out", plan_for("pytorch", triton=LAYOUT), engine).values()
    assert declared(model.input) == UPSTREAM["inputs"]
    assert declared(model.output) == UPSTREAM["outputs"]


def test_instances_have_gpus_of_their_own(engine: Path, tmp_path: Path) -> None:
    plan = plan_for("pytorch", triton={**LAYOUT, "instances": 2}, parallel={"tensor": 2})
    (model,) = packed(tmp_path / "out", plan, engine).values()
    assert parameters(model) == {"gpu_device_ids": "0,1;2,3"}
    assert model.instance_group[0].count == 2


def test_the_arguments_are_told_before_anything_is_built() -> None:
    text = repository_summary(plan_for("pytorch", triton=LAYOUT), ENGINE, LLAMA_8B)
    assert "    model: /engines/a/checkpoint\n" in text
    assert "    max_batch_size: 48\n" in text


def test_adapters_that_no_request_could_name_are_refused(engine: Path, tmp_path: Path) -> None:
    plan = plan_for("pytorch", triton=LAYOUT, lora={"adapters": {"legal": "/legal"}})
    with pytest.raises(BuildError, match="`llmapi` has no input that names an adapter"):
        packed(tmp_path / "out", plan, engine)


def shim(upstream: Path, folder: Path) -> dict[str, Any]:
    """The packed model.py, with the image's model in another place."""
    text = (templates_dir() / "llmapi" / "1" / "model.py").read_text()
    path = folder / "model.py"
    path.write_text(text.replace("/app/all_models/llmapi/tensorrt_llm/1", str(upstream)))
    return runpy.run_path(str(path))


def test_the_model_is_the_images_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    upstream = tmp_path / "image"
    upstream.mkdir()
    (upstream / "beside_the_model.py").write_text("NAME = 'upstream'\n")
    (upstream / "model.py").write_text("from beside_the_model import NAME\nclass TritonPythonModel: name = NAME\n")
    assert shim(upstream, tmp_path)["TritonPythonModel"].name == "upstream"


def test_another_image_is_named_as_the_cause(tmp_path: Path) -> None:
    with pytest.raises(ImportError, match="serve this repository in a trtllm-python image"):
        shim(tmp_path / "nowhere", tmp_path)
