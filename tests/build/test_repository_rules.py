"""Rules about a model repository that is there: one that Conch packed for an engine, damaged in one way at a time."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from conch_build.cli import build_commands
from conch_build.compile.gpu_manifest import gpu_manifest
from conch_build.errors import CheckError
from conch_build.pack import pack
from conch_build.preflight import Violation
from conch_build.preflight.repository import repository_violations
from tests.build.configs import CONFIGS, described
from tests.build.test_gpu_rules import gpu_plan
from tests.build.tiny import write_tokenizer


@dataclass(frozen=True)
class Site:
    """A repository and the engine artifact that it names."""

    repository: Path
    engine: Path

    def edit(self, model: str, pattern: str, replacement: str) -> None:
        """Change a config.pbtxt where `pattern` is found, which it must be."""
        path = self.repository / model / "config.pbtxt"
        text, count = re.subn(pattern, replacement, path.read_text())
        assert count
        path.write_text(text)

    def engine_config(self, **parts: dict[str, Any]) -> None:
        """Merge into the engine's own config.json."""
        path = self.engine / "engine" / "config.json"
        config = json.loads(path.read_text())
        for part, values in parts.items():
            config[part] = {**config[part], **values} if isinstance(values, dict) else values
        path.write_text(json.dumps(config))


def site_of(tmp_path: Path, **parts: Any) -> Site:
    plan, info = gpu_plan(**parts), described("llama-3-8b")
    site = Site(tmp_path / "repository", tmp_path / "artifact")
    engine = site.engine / "engine"
    engine.mkdir(parents=True)
    plugins = {"use_paged_context_fmha": True}
    config = {
        "version": "1.2.1",
        "pretrained_config": {"mapping": {"world_size": 1}},
        "build_config": {"plugin_config": plugins, "max_seq_len": 8192},
    }
    (engine / "config.json").write_text(json.dumps(config))
    (engine / "rank0.engine").touch()
    write_tokenizer(site.engine / "tokenizer")
    (site.engine / "tokenizer" / "config.json").write_text((CONFIGS / "llama-3-8b" / "config.json").read_text())
    gpu_manifest(plan, info, release="1.2.1", container="nvcr.io/image:1").save(site.engine)
    pack(site.engine, site.repository, plan, info)
    return site


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return site_of(tmp_path)


def found(site: Site) -> dict[str, Violation]:
    return {violation.rule: violation for violation in repository_violations(site.repository)}


def test_what_conch_packs_breaks_no_rule(site: Site) -> None:
    assert found(site) == {}


def _placeholder(site: Site) -> None:
    site.edit("tensorrt_llm", r"max_batch_size: \d+", "max_batch_size: ${triton_max_batch_size}")


def _not_decoupled(site: Site) -> None:
    site.edit("tensorrt_llm_bls", r"decoupled: true", "decoupled: false")


def _unparsable(site: Site) -> None:
    site.edit("tensorrt_llm_bls", r"max_batch_size: \d+", "max_batch_size: many")


def _token_by_token(site: Site) -> None:
    site.edit("tensorrt_llm_bls", r'(accumulate_tokens" value \{ string_value: )"true"', r'\1"false"')


def _rank_lost(site: Site) -> None:
    site.engine_config(pretrained_config={"mapping": {"world_size": 2}})


def _other_release(site: Site) -> None:
    site.engine_config(version="1.1.0")  # type: ignore[arg-type]


def _no_paged_context(site: Site) -> None:
    site.engine_config(build_config={"plugin_config": {"use_paged_context_fmha": False}})


def _no_tokenizer(site: Site) -> None:
    (site.engine / "tokenizer").rename(site.engine / "elsewhere")


def _adapter_by_name(site: Site) -> None:
    (site.engine / "lora" / "legal").mkdir(parents=True)
    prefetch = f'parameters {{ key: "lora_prefetch_dir" value {{ string_value: "{site.engine / "lora"}" }} }}'
    path = site.repository / "tensorrt_llm" / "config.pbtxt"
    path.write_text(f"{path.read_text()}\n{prefetch}\n")


DAMAGES: dict[str, tuple[Callable[[Site], None], str]] = {
    "repository.placeholder": (_placeholder, "`${triton_max_batch_size}`"),
    "repository.broken": (_unparsable, "does not parse"),
    "repository.decoupled": (_not_decoupled, "`tensorrt_llm` is decoupled and `tensorrt_llm_bls` is not"),
    "repository.stream-text": (_token_by_token, "each token of a stream"),
    "repository.world-size": (_rank_lost, "for 2 GPUs and has 1 rank files"),
    "repository.engine-version": (_other_release, "TensorRT-LLM 1.1.0 built it"),
    "repository.paged-context": (_no_paged_context, "`use_paged_context_fmha`"),
    "repository.tokenizer": (_no_tokenizer, "is not there"),
    "repository.lora-prefetch": (_adapter_by_name, "no adapter's id"),
}


@pytest.mark.parametrize("rule", DAMAGES)
def test_each_damage_is_found_by_its_rule(site: Site, rule: str) -> None:
    damage, words = DAMAGES[rule]
    damage(site)
    violations = found(site)
    assert violations[rule].severity == "error"
    assert words in violations[rule].message and violations[rule].fix


def test_a_placeholder_within_quotes_counts_as_not_set(site: Site) -> None:
    site.edit("tensorrt_llm_bls", r'(accumulate_tokens" value \{ string_value: )"true"', r'\1"${accumulate_tokens}"')
    violation = found(site)["repository.placeholder"]
    assert violation.severity == "warning" and "counts as not set" in violation.message


def test_an_engine_longer_than_the_model_and_without_its_rope_scaling_is_a_warning(site: Site) -> None:
    config = json.loads((site.engine / "tokenizer" / "config.json").read_text())
    config |= {"max_position_embeddings": 4096, "rope_scaling": {"rope_type": "llama3"}}
    (site.engine / "tokenizer" / "config.json").write_text(json.dumps(config))
    warned = [violation for violation in repository_violations(site.repository) if violation.rule == "repository.rope"]
    assert [violation.severity for violation in warned] == ["warning", "warning"]
    assert "rope scaling" in warned[0].message and "4096 positions" in warned[1].message


def test_an_adapter_of_another_type_than_the_engines_is_found(site: Site) -> None:
    _adapter_by_name(site)
    folder = (site.engine / "lora" / "legal").rename(site.engine / "lora" / "1")
    site.engine_config(build_config={"plugin_config": {"use_paged_context_fmha": True, "lora_plugin": "float16"}})
    np.save(folder / "model.lora_config.npy", np.zeros(3, np.int32))
    np.save(folder / "model.lora_weights.npy", np.zeros(3, np.float16))
    assert found(site) == {}
    np.save(folder / "model.lora_weights.npy", np.zeros(3, np.float32))
    assert "float32" in found(site)["repository.lora-prefetch"].message


def test_a_draft_engine_that_does_not_fit_its_target_is_found(tmp_path: Path) -> None:
    speculation = {"method": "draft", "checkpoint": str(CONFIGS / "llama-3-8b")}
    site = site_of(tmp_path, engine={"speculation": speculation})
    shutil.copytree(site.engine / "engine", site.engine / "draft" / "engine")
    site.engine_config(pretrained_config={"vocab_size": 128_256}, build_config={"max_draft_len": 4})
    draft = Site(site.repository, site.engine / "draft")
    draft.engine_config(pretrained_config={"vocab_size": 128_256})
    assert found(site) == {}
    draft.engine_config(pretrained_config={"vocab_size": 128_258})
    site.engine_config(build_config={"max_draft_len": 0})
    site.edit("tensorrt_llm_draft", r'(enable_kv_cache_reuse" value \{ string_value: )"true"', r'\1"false"')
    messages = [v.message for v in repository_violations(site.repository) if v.rule == "repository.draft"]
    assert len(messages) == 3
    assert "128258" in messages[0] and "`max_draft_len` is 0" in messages[1] and "reuse" in messages[2]


def test_model_yaml_is_not_heard_without_config_pbtxt(tmp_path: Path) -> None:
    site = site_of(tmp_path, engine={"backend": "pytorch"}, serving={"triton": {"layout": "llmapi"}})
    assert found(site) == {}
    site.edit("tensorrt_llm", r"decoupled: true", "decoupled: false")
    assert found(site)["repository.llmapi-decoupled"].severity == "error"


def test_check_of_a_folder_says_it_all_and_exits_with_2(site: Site) -> None:
    _token_by_token(site)
    _no_tokenizer(site)
    done = CliRunner().invoke(build_commands, ["check", str(site.repository)])
    assert done.exit_code == 2
    assert "error repository.stream-text" in done.stdout and "error repository.tokenizer" in done.stdout


def test_a_folder_without_models_is_no_repository(tmp_path: Path) -> None:
    with pytest.raises(CheckError, match="no model repository"):
        repository_violations(tmp_path)
    assert CliRunner().invoke(build_commands, ["check", str(tmp_path)]).exit_code == 2


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"", None])
def test_a_configuration_that_is_no_text_or_empty_is_broken(site: Site, content: bytes | None) -> None:
    path = site.repository / "ensemble" / "config.pbtxt"
    path.unlink()
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    broken = [violation for violation in repository_violations(site.repository) if violation.where.startswith("ens")]
    assert [violation.rule for violation in broken] == ["repository.broken"]
