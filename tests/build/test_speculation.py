"""A draft model beside its target: checked before the build, built into the engine, loaded with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from conch_build.manifest import DRAFT_DIR, EngineKvCache, EngineManifest
from conch_build.pipeline import build
from conch_build.plan import Plan, load_plan, parse_plan
from conch_build.preflight import Violation, check
from conch_build.store import Store
from tests.build.conftest import EditJson
from tests.build.tiny import write_tiny

for library in ("torch", "modelopt", "openvino"):
    pytest.importorskip(library)


@pytest.fixture(scope="module")
def tiny_draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("draft") / "draft", seed=1, num_hidden_layers=1)


def plan_with(target: Path, draft: Path, **engine: Any) -> Plan:
    return Plan.model_validate(
        {
            "name": "tiny",
            "model": {"checkpoint": str(target)},
            "quantization": {"format": "int8"},
            "engine": {
                "max_seq_len": 128,
                "max_num_tokens": 128,
                "max_batch_size": 4,
                "kv_cache": {"size": "16MiB"},
                "speculation": {"method": "draft", "checkpoint": str(draft), "max_draft_len": 3},
                **engine,
            },
        }
    )


def found(target: Path, draft: Path, **engine: Any) -> dict[str, Violation]:
    violations = check(plan_with(target, draft, **engine))
    assert all(violation.where.startswith("engine.speculation") for violation in violations)
    return {violation.rule: violation for violation in violations}


def test_a_fitting_draft_has_no_violation(tiny_llama: Path, tiny_draft: Path) -> None:
    assert found(tiny_llama, tiny_draft) == {}


def test_a_missing_draft_is_named(tiny_llama: Path, tmp_path: Path) -> None:
    assert "checkpoint.not-found" in found(tiny_llama, tmp_path / "nowhere")


def test_another_vocabulary_is_refused(tiny_llama: Path, tmp_path: Path) -> None:
    other = write_tiny(tmp_path / "other", num_hidden_layers=1, vocab_size=384)
    violation = found(tiny_llama, other)["speculation.vocabulary"]
    assert "384" in violation.message and "320" in violation.message and "conch draft" in violation.fix


def test_another_tokenizer_is_refused_with_the_first_token_that_differs(
    tiny_llama: Path, tmp_path: Path, edit_json: EditJson
) -> None:
    other = write_tiny(tmp_path / "other", num_hidden_layers=1)
    data = json.loads((other / "tokenizer.json").read_text())
    names = {number: token for token, number in data["model"]["vocab"].items()}
    data["model"]["vocab"][names[70]], data["model"]["vocab"][names[71]] = 71, 70
    (other / "tokenizer.json").write_text(json.dumps(data))
    message = found(tiny_llama, other)["speculation.tokenizer"].message
    assert f"id 70 is {names[70]!r} in the target and {names[71]!r} in the draft" in message


def test_too_few_positions_are_refused_and_a_larger_draft_is_warned_of(tiny_llama: Path, tmp_path: Path) -> None:
    other = write_tiny(tmp_path / "other", num_hidden_layers=3, max_position_embeddings=64)
    violations = found(tiny_llama, other)
    assert violations["speculation.positions"].severity == "error"
    assert violations["speculation.size"].severity == "warning"


def test_a_drafts_path_is_taken_from_the_plans_own_folder(tiny_llama: Path, tmp_path: Path) -> None:
    (tmp_path / "drafts").mkdir()
    file = tmp_path / "conch.yaml"
    file.write_text(
        f"name: a\nmodel: {{checkpoint: {tiny_llama}}}\n"
        "engine: {speculation: {method: draft, checkpoint: drafts}}\n"
    )
    assert load_plan(file).engine.speculation.checkpoint == str(tmp_path / "drafts")


def test_the_engine_holds_its_draft_and_answers_as_without_it(
    tiny_llama: Path, tiny_draft: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from conch.engine import Engine, Request, SamplingParams
    from tests.engine.conftest import ask

    monkeypatch.setenv("CONCH_HOME", str(tmp_path))
    plan = plan_with(tiny_llama, tiny_draft)
    engine = build(plan, Store(tmp_path / "store")).engine.path
    manifest, draft = EngineManifest.load(engine), EngineManifest.load(engine / DRAFT_DIR)
    assert (manifest.speculation.method, manifest.speculation.max_draft_len) == ("draft", 3)
    assert (draft.speculation.method, draft.num_layers, draft.quantization.format) == ("none", 1, "int8")
    assert draft.checkpoint.source == str(tiny_draft)

    none = plan.engine.model_copy(update={"speculation": type(plan.engine.speculation)()})
    plain = build(plan.model_copy(update={"engine": none}), Store(tmp_path / "store")).engine.path
    sampling = SamplingParams(temperature=0.0, end_ids=frozenset())
    answers = []
    for folder in (plain, engine):
        with Engine.load(folder) as loaded:
            answers.append(ask(loaded, Request("a", [5, 6, 7], 60, sampling)).wait().tokens)
            stats = loaded.stats()
    assert answers[0] == answers[1]
    assert stats.draft_tokens_total > 0
    assert stats.kv_blocks_total == (16 << 20) // (manifest.kv_block_bytes + draft.kv_block_bytes)


def test_the_size_of_the_cache_is_given_in_one_way() -> None:
    text = "name: a\nmodel: {checkpoint: sample}\nengine: {kv_cache: {size: 1GiB, concurrency: 4}}\n"
    with pytest.raises(Exception, match="given twice, by size and concurrency"):
        parse_plan(text)


def test_the_cache_holds_the_wanted_requests_draft_included(
    tiny_llama: Path, tiny_draft: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONCH_HOME", str(tmp_path))
    plan = plan_with(tiny_llama, tiny_draft, kv_cache={"concurrency": 5}, max_seq_len=100)
    engine = build(plan, Store(tmp_path / "store")).engine.path
    manifest, draft = EngineManifest.load(engine), EngineManifest.load(engine / DRAFT_DIR)
    assert manifest.num_blocks(0, draft) == 5 * 4, "a hundred tokens take four blocks"


def test_a_fraction_is_of_what_is_free_when_the_engine_is_loaded() -> None:
    cache = EngineKvCache(dtype="u8", tokens_per_block=32, size_bytes=1, free_memory_fraction=0.25, reuse=True)
    values = dict.fromkeys(EngineManifest.model_fields)
    manifest = EngineManifest.model_construct(
        **{**values, "kv_cache": cache, "num_layers": 2, "num_kv_heads": 2, "head_dim": 16}
    )
    assert manifest.num_blocks(1 << 30) == (1 << 28) // manifest.kv_block_bytes
