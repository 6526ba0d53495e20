"""A repository is walked before Triton is: everything that is wrong with it comes at once, by model."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from conch_build.errors import BuildError
from conch_build.pack import check_repository, read_config, repository_problems
from tests.model_repo.plans import packed, plan_for


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    out = tmp_path / "repository"
    packed(out, plan_for("tensorrt"))
    return out


def change(repository: Path, model: str, old: str, new: str) -> None:
    path = repository / model / "config.pbtxt"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_a_good_repository_has_no_problems(repository: Path) -> None:
    assert repository_problems(repository) == []


@pytest.mark.parametrize(
    ("model", "old", "new", "problem"),
    [
        (
            "ensemble",
            'key: "input_ids" value: "_INPUT_ID"',
            'key: "input_ids" value: "nobody"',
            "ensemble: `input_ids` of `tensorrt_llm` is fed from `nobody`, which nothing makes",
        ),
        ("ensemble", 'key: "input_lengths"', 'key: "no_such"', "ensemble: `tensorrt_llm` has no input `no_such`"),
        ("ensemble", 'key: "OUTPUT" value: "text_output"', 'key: "OUTPUT" value: "text"', "`text_output` is not made"),
        (
            "ensemble",
            'name: "stream" data_type: TYPE_BOOL',
            'name: "stream" data_type: TYPE_INT32',
            "`streaming` of `tensorrt_llm` has another type than `stream`",
        ),
        (
            "ensemble",
            'name: "top_k" data_type: TYPE_INT32 dims: 1',
            'name: "top_k" data_type: TYPE_INT32 dims: 2',
            "`runtime_top_k` of `tensorrt_llm` has another shape than `top_k`",
        ),
        ("ensemble", 'model_name: "postprocessing"', 'model_name: "gone"', "ensemble: there is no model `gone`"),
        (
            "ensemble",
            'input_map { key: "QUERY" value: "text_input" }',
            "",
            "ensemble: `preprocessing` needs the input `QUERY`, which nothing feeds",
        ),
        ("ensemble", 'key: "temperature"', 'key: "top_q"', "ensemble: `tensorrt_llm` has no input `top_q`"),
        ("ensemble", "max_batch_size: 48", "max_batch_size: 64", "its batch of 64 is larger than that of `preproc"),
        (
            "tensorrt_llm",
            "decoupled: true",
            "decoupled: false",
            "tensorrt_llm_bls: it is decoupled, but `tensorrt_llm` is not decoupled",
        ),
        (
            "tensorrt_llm_bls",
            'string_value: "tensorrt_llm"',
            'string_value: "llm"',
            "tensorrt_llm_bls: `tensorrt_llm_model_name` names `llm`, and there is no such model",
        ),
        ("preprocessing", 'name: "preprocessing"', 'name: "pre"', "preprocessing: its configuration is that of `pre`"),
        (
            "tensorrt_llm",
            'key: "tokenizer_dir"',
            'key: "tokeniser_dir"',
            "tensorrt_llm: `tokenizer_dir` is missing: the backend does not load without it, be it empty",
        ),
        ("tensorrt_llm", "/engines/a/engine", "", "tensorrt_llm: `gpt_model_path` names no engine"),
        ("preprocessing", "max_batch_size: 48", "max_batch_size: ${size}", "the placeholder `${size}` was left"),
        ("preprocessing", "/engines/a/tokenizer", "${tokenizer_dir}", "the placeholder `${tokenizer_dir}` was left"),
        ("preprocessing", "max_batch_size", "max_bach_size", "preprocessing/config.pbtxt: does not parse: "),
    ],
)
def test_a_broken_repository_says_where(repository: Path, model: str, old: str, new: str, problem: str) -> None:
    change(repository, model, old, new)
    problems = repository_problems(repository)
    assert any(problem in each for each in problems), problems


def test_everything_comes_at_once(repository: Path) -> None:
    change(repository, "preprocessing", "max_batch_size: 48", "max_batch_size: ${size}")
    change(repository, "tensorrt_llm", "decoupled: true", "decoupled: false")
    shutil.rmtree(repository / "postprocessing")
    with pytest.raises(BuildError) as caught:
        check_repository(repository)
    for part in ("${size}", "not decoupled", "there is no model `postprocessing`", str(repository)):
        assert part in caught.value.message


def test_a_model_that_does_not_parse_is_told_once(repository: Path) -> None:
    change(repository, "preprocessing", "max_batch_size: 48", "max_batch_size: ${size}")
    assert repository_problems(repository) == ["preprocessing: the placeholder `${size}` was left unfilled"]


def test_upstreams_templates_as_they_come_are_all_placeholders(tmp_path: Path) -> None:
    model = tmp_path / "tensorrt_llm"
    (model / "1").mkdir(parents=True)
    (model / "config.pbtxt").write_text(
        '# ${ignored} in a comment\nname: "tensorrt_llm"\nbackend: "${triton_backend}"\n'
        "max_batch_size: ${triton_max_batch_size}\nmodel_transaction_policy { decoupled: ${decoupled_mode} }\n"
    )
    assert repository_problems(tmp_path) == [
        f"tensorrt_llm: the placeholder `${{{name}}}` was left unfilled"
        for name in ("triton_backend", "triton_max_batch_size", "decoupled_mode")
    ]


def test_a_bls_that_names_a_draft_needs_it(tmp_path: Path) -> None:
    draft = {"method": "draft", "checkpoint": "sample", "max_draft_len": 4}
    packed(tmp_path, plan_for("tensorrt", speculation=draft))
    shutil.rmtree(tmp_path / "tensorrt_llm_draft")
    assert repository_problems(tmp_path) == [
        "tensorrt_llm_bls: `tensorrt_llm_draft_model_name` names `tensorrt_llm_draft`, and there is no such model"
    ]


def test_gpus_are_given_to_every_instance(tmp_path: Path) -> None:
    packed(tmp_path, plan_for("tensorrt", triton={"instances": 2}))
    change(tmp_path, "tensorrt_llm", '"0;1"', '"0;1;2"')
    assert repository_problems(tmp_path) == ["tensorrt_llm: `gpu_device_ids` has GPUs for 3 instances, and there are 2"]


def test_files_that_triton_would_miss_are_named(repository: Path) -> None:
    (repository / "tensorrt_llm_bls" / "1" / "model.py").unlink()
    shutil.rmtree(repository / "ensemble" / "1")
    assert repository_problems(repository) == [
        "ensemble: it has no version, a folder named by a number",
        "tensorrt_llm_bls: 1/model.py is missing",
    ]


def test_a_folder_without_models_is_no_repository(tmp_path: Path) -> None:
    assert repository_problems(tmp_path) == ["no folder in it has a config.pbtxt"]


def test_a_config_that_is_not_finished_is_not_read(repository: Path) -> None:
    path = repository / "ensemble" / "config.pbtxt"
    path.write_text("name: 'x'\nno_such_field: 1\n")
    with pytest.raises(BuildError, match=r"ensemble/config.pbtxt: does not parse: 2:"):
        read_config(path)
    path.write_text("name: '${x}'\n")
    with pytest.raises(BuildError, match="the placeholder `x` was left unfilled"):
        read_config(path)
