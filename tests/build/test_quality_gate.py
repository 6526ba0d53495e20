"""The quality gate of a build, with real engines of a tiny model: what it measures, stops and remembers."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from conch.cli import main
from conch.evaluation import EngineEvaluator
from conch_build.dry_run import dry_run
from conch_build.errors import CheckError, QualityError, SetupError
from conch_build.pipeline import BuildResult, build
from conch_build.plan import Plan, parse_plan
from conch_build.preflight import check
from conch_build.preflight.registry import find
from conch_build.quality import Figures, Work
from conch_build.quality.gate import Side, baseline_plan, evaluator_code
from conch_build.stages import Say, sources
from conch_build.store import Store
from tests.build.exports import info_of
from tests.conftest import ROOT

for library in ("torch", "modelopt", "openvino"):
    pytest.importorskip(library)

ENGINE = {"max_seq_len": 128, "max_num_tokens": 128, "max_batch_size": 4, "kv_cache": {"size": "16MiB"}}
HELD = {"perplexity_ratio_max": 1.5, "agreement_min": 0.1, "kl_max": 1.0}


def plan_of(checkpoint: Path, format: str = "int8", **quality: Any) -> Plan:
    return Plan.model_validate(
        {
            "name": "tiny",
            "model": {"checkpoint": str(checkpoint)},
            "quantization": {"format": format},
            "engine": ENGINE,
            "quality": {"samples": 2, "max_length": 32, **quality},
        }
    )


@dataclass
class Counting(EngineEvaluator):
    """The real one, which tells how often it was needed."""

    measured: list[Work] = field(default_factory=list)

    def measure(self, baseline: Side, build: Side, work: Work, say: Say) -> Figures:
        self.measured.append(work)
        return super().measure(baseline, build, work, say)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store(tmp_path_factory.mktemp("gate") / "store")


@pytest.fixture(scope="module")
def passed(tiny_llama: Path, store: Store) -> BuildResult:
    """A build whose limits hold."""
    return build(plan_of(tiny_llama, **HELD), store, evaluator=EngineEvaluator())


def test_a_build_that_holds_its_limits_keeps_its_figures_beside_the_engine(passed: BuildResult) -> None:
    assert passed.quality is not None
    figures = Figures.load(passed.quality.path)
    assert figures.text is not None and figures.text.kl_exact
    assert figures.text.tokens == 2 * 31
    assert 0 < figures.text.kl < 1 and 0.1 < figures.text.agreement <= 1
    assert passed.as_dict()["artifacts"]["quality"]["artifact"] == passed.quality.label


def test_the_repository_names_the_figures_and_limits_that_let_it_pass(passed: BuildResult) -> None:
    assert passed.quality is not None
    assert passed.repository.manifest.inputs["quality"] == {"key": passed.quality.key, "limits": HELD}


def test_a_rebuild_measures_nothing_and_needs_nobody_who_could(
    passed: BuildResult, tiny_llama: Path, store: Store
) -> None:
    again = build(plan_of(tiny_llama, **HELD), store)
    assert all(artifact.reused for artifact in again.artifacts)
    assert again.quality is not None and passed.quality is not None and again.quality.key == passed.quality.key


def test_a_broken_limit_fails_the_build_and_packs_nothing(passed: BuildResult, tiny_llama: Path, store: Store) -> None:
    before = [artifact.label for artifact in store.list() if artifact.kind == "repository"]
    evaluator = Counting()
    for _ in range(2):
        with pytest.raises(QualityError) as caught:
            build(plan_of(tiny_llama, **{**HELD, "kl_max": 0, "agreement_min": 1}), store, evaluator=evaluator)
        assert caught.value.exit_code == 3
        assert "kl 0.0" in caught.value.message and "is above 0" in caught.value.message
    assert evaluator.measured == []  # other limits are held against the same figures
    assert [artifact.label for artifact in store.list() if artifact.kind == "repository"] == before


def test_another_text_or_other_tasks_are_measured_again(
    passed: BuildResult, tiny_llama: Path, store: Store, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("Hello there, how are you?\n\nThe quick brown fox jumps.")
    (tmp_path / "a.jsonl").write_text('{"prompt": "one two", "reference": "three", "max_tokens": 2}')
    changed = {**HELD, "text": str(tmp_path / "a.txt"), "tasks": str(tmp_path / "a.jsonl")}
    evaluator = Counting()
    result = build(plan_of(tiny_llama, **changed), store, evaluator=evaluator)
    assert [work.texts[0] for work in evaluator.measured] == ["Hello there, how are you?"]
    assert result.quality is not None
    assert Figures.load(result.quality.path).tasks.exact_match is not None  # type: ignore[union-attr]
    assert result.engine.key == passed.engine.key
    (tmp_path / "a.txt").write_text("Something else is here now.")
    build(plan_of(tiny_llama, **changed), store, evaluator=evaluator)
    assert [work.texts[0] for work in evaluator.measured][1:] == ["Something else is here now."]


def test_without_limits_nothing_is_measured(passed: BuildResult, tiny_llama: Path, store: Store) -> None:
    result = build(plan_of(tiny_llama), store)
    assert result.quality is None
    assert [artifact.kind for artifact in result.artifacts] == ["quantized", "engine", "repository"]


def test_a_build_that_nobody_can_measure_is_refused(tiny_llama: Path, store: Store) -> None:
    with pytest.raises(SetupError, match=r"has not been through its quality gate\. Run `conch build`"):
        build(plan_of(tiny_llama, "none", **HELD), store)


def test_an_engine_that_is_its_own_baseline_differs_in_nothing(tiny_llama: Path, store: Store) -> None:
    plan = plan_of(tiny_llama, "none", kl_max=1e-9, agreement_min=1, perplexity_ratio_max=1.000001)
    exact = {"engine": plan.engine.model_copy(update={"precision": "f32"})}
    cache = {"quantization": plan.quantization.model_copy(update={"kv_cache": "f32"})}
    plan = plan.model_copy(update={**exact, **cache})
    assert build(plan, store, evaluator=EngineEvaluator()).quality is not None


def test_the_baseline_is_the_same_plan_with_nothing_quantized() -> None:
    plan = parse_plan(
        "name: a\nmodel: {checkpoint: sample}\nquantization: {format: int4_awq}\n"
        "engine: {precision: bf16, speculation: {method: ngram}, max_seq_len: 99}\nquality: {kl_max: 1}"
    )
    own = baseline_plan(plan)
    assert (own.quantization.format, own.quantization.kv_cache) == ("none", "bf16")
    assert (own.engine.speculation.method, own.engine.max_seq_len) == ("none", 99)
    assert (own.model, own.quality.limits) == (plan.model, {})
    named = plan.model_copy(update={"quality": plan.quality.model_copy(update={"baseline": "other/model"})})
    assert baseline_plan(named).model.checkpoint == "other/model"


def test_paths_of_the_gate_start_at_the_plans_folder(tmp_path: Path) -> None:
    text = "name: a\nmodel: {checkpoint: sample}\nquality: {text: a.txt, tasks: b/c.jsonl, baseline: ./m}"
    quality = parse_plan(text, folder=tmp_path).quality
    assert (quality.text, quality.tasks) == (str(tmp_path / "a.txt"), str(tmp_path / "b/c.jsonl"))
    assert quality.baseline == str(tmp_path / "m")


def test_files_that_do_not_read_are_refused_before_anything_is_built(tiny_llama: Path, tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").write_text("")
    plan = plan_of(tiny_llama, tasks=str(tmp_path / "tasks.jsonl"), exact_match_min=0.5)
    assert {violation.rule for violation in check(plan)} == {"quality.files"}
    with pytest.raises(CheckError, match="holds no tasks"):
        build(plan, Store(tmp_path / "store"), evaluator=EngineEvaluator())


@pytest.mark.parametrize("limit", ["exact_match_min", "bleu_min", "rouge_l_min", "similarity_min", "valid_min"])
def test_a_limit_that_no_task_is_about_is_refused(tiny_llama: Path, tmp_path: Path, limit: str) -> None:
    assert {violation.rule for violation in check(plan_of(tiny_llama, **{limit: 0.5}))} == {"quality.unmeasured"}
    (tmp_path / "tasks.jsonl").write_text('{"prompt": "a"}')
    told = check(plan_of(tiny_llama, **{limit: 0.5}, tasks=str(tmp_path / "tasks.jsonl")))
    assert "no task of" in told[0].message


def test_a_checkpoint_that_comes_quantized_is_not_compared_with_itself(tiny_llama: Path) -> None:
    quantized = dataclasses.replace(info_of(tiny_llama), quantization={"quant_algo": "FP8"})
    for quality, rules in (
        ({"kl_max": 1}, {"quality.baseline"}),
        ({"kl_max": 1, "baseline": "other"}, set()),
        ({"perplexity_max": 9}, set()),
    ):
        plan = plan_of(tiny_llama, "none", **quality)
        facts = {"plan": plan, "info": quantized}
        told = {violation.rule for violation in find(facts, "openvino")}
        assert {rule for rule in told if rule.startswith("quality")} == rules


@pytest.mark.parametrize("limit", ["perplexity_max", "perplexity_ratio_max", "kl_max"])
def test_gpu_backends_are_not_asked_for_log_probs_that_they_do_not_tell(tiny_llama: Path, limit: str) -> None:
    plan = plan_of(tiny_llama, "none", **{limit: 1})
    for backend in ("pytorch", "tensorrt"):
        on_gpu = plan.model_copy(update={"engine": plan.engine.model_copy(update={"backend": backend})})
        told = {v.where for v in find({"plan": on_gpu}, backend) if v.rule == "quality.no-log-probs"}
        assert told == {f"quality.{limit}"}
    assert "quality.no-log-probs" not in {v.rule for v in find({"plan": plan}, "openvino")}


def test_a_dry_run_says_what_would_be_measured(
    passed: BuildResult, tiny_llama: Path, store: Store, tmp_path: Path
) -> None:
    said = dry_run(plan_of(tiny_llama, **HELD), store).text()
    assert f"quality     {passed.quality.path.name}: reused" in said  # type: ignore[union-attr]
    fresh = dry_run(plan_of(tiny_llama, **HELD), Store(tmp_path)).text()
    assert "would be built: measured beside the unquantized model and held to perplexity_ratio_max 1.5" in fresh


def test_the_commands_tell_of_the_gate(tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONCH_HOME", str(tmp_path / "home"))
    document = {
        "name": "tiny",
        "model": {"checkpoint": str(tiny_llama)},
        "quantization": {"format": "int8"},
        "engine": ENGINE,
        "quality": {"samples": 1, "max_length": 16, "kl_max": 0},
    }
    (tmp_path / "conch.yaml").write_text(json.dumps(document))  # JSON is YAML
    runner = CliRunner()
    failed = runner.invoke(main, ["build", str(tmp_path / "conch.yaml"), "--json"])
    assert failed.exit_code == 3
    told = json.loads(failed.stdout)
    assert (told["error"], told["where"]) == ("QualityError", "tiny")
    listed = json.loads(runner.invoke(main, ["artifacts", "list", "--json"]).stdout)
    kinds = [artifact["artifact"].partition("/")[0] for artifact in listed]
    assert kinds.count("quality") == 1 and "repository" not in kinds
    verified = runner.invoke(main, ["artifacts", "verify"])
    assert verified.exit_code == 0


def test_figures_are_of_the_code_that_measured_them(tmp_path: Path) -> None:
    for name in ("evaluation", "engine"):
        shutil.copytree(ROOT / "serving" / "conch" / name, tmp_path / "conch" / name)
    (tmp_path / "conch" / "__init__.py").touch()

    def key() -> str:
        program = "from conch_build.quality.gate import evaluator_code; print(evaluator_code())"
        paths = os.pathsep.join(map(str, (tmp_path, ROOT / "build")))
        run = [sys.executable, "-c", program]
        return subprocess.check_output(run, env={**os.environ, "PYTHONPATH": paths}, text=True)

    before = key()
    assert before == f"{evaluator_code()}\n" != f"{sources()}\n"
    with (tmp_path / "conch" / "evaluation" / "engine.py").open("a") as file:
        file.write("# another way to ask\n")
    assert key() != before
