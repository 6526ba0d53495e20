"""`conch eval`: engines in process held to transformers, servers held to engines, its words for what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from conch.cli import main
from conch.evaluation import steps
from conch.evaluation.engine import EngineSubject
from conch.evaluation.remote import ServedSubject
from conch.evaluation.served import served
from conch_build.errors import InputError
from conch_build.pipeline import BuildResult
from conch_build.plan import parse_plan
from conch_build.plan_quality import Quality
from conch_build.quality import CHUNK, FullRows, Recorded, Task, Work, judge, work_of
from conch_build.quality.rows import compare
from conch_build.store import Store
from tests.build.compiled import compile_checkpoint
from tests.build.reference import EXACT_BOUND, reference, reference_logits
from tests.build.tiny import write_tiny
from tests.conftest import SAMPLE_PLAN

if TYPE_CHECKING:
    from tests.contract.conftest import Gateway

TASKS = [
    {"prompt": "The capital of France is", "reference": "Paris", "max_tokens": 4, "stop": [".", "\n"]},
    {"messages": [{"role": "user", "content": "What is 2+2?"}], "answers": ["4"], "max_tokens": 12},
    {
        "prompt": "A person as JSON: ",
        "schema": {
            "type": "object",
            "properties": {"name": {"type": "string", "maxLength": 12}},
            "required": ["name"],
            "additionalProperties": False,
        },
    },
]


@pytest.fixture
def tasks_file(tmp_path: Path) -> Path:
    path = tmp_path / "tasks.jsonl"
    path.write_text("\n".join(map(json.dumps, TASKS)))
    return path


def conch_eval(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["eval", *map(str, arguments)])


def told(*arguments: object) -> Any:
    done = conch_eval(*arguments, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_an_engines_rows_are_those_of_transformers_over_the_borders_of_chunks(tmp_path: Path) -> None:
    source = write_tiny(tmp_path / "source")
    compile_checkpoint(source, tmp_path / "engine", max_seq_len=512)
    subject = EngineSubject(tmp_path / "engine")
    text = " ".join(["The quick brown fox jumps over the lazy dog."] * 20)
    ids = subject.ids(text)[: 2 * CHUNK + 10]
    found = list(subject.rows([ids, subject.ids("Hello there")]))
    assert [len(rows.tokens) for rows in found][:3] == [CHUNK, CHUNK, 9]
    whole = np.concatenate([rows.logits for rows in found[:3] if isinstance(rows, FullRows)])
    assert abs(whole - reference_logits(reference(source), ids)[:-1]).max() < EXACT_BOUND
    assert [token for rows in found[:3] for token in rows.tokens] == ids[1:]


def test_a_long_text_ends_where_the_engines_context_does(tmp_path: Path) -> None:
    compile_checkpoint(write_tiny(tmp_path / "source"), tmp_path / "engine", max_seq_len=64)
    subject = EngineSubject(tmp_path / "engine")
    found = list(subject.rows([subject.ids("one two three " * 200)]))
    assert sum(len(rows.tokens) for rows in found) == 63


@pytest.mark.slow
def test_a_server_and_the_engine_behind_it_are_found_equally_good(gateway: Gateway, sample_build: BuildResult) -> None:
    texts = work_of(Quality(samples=3)).texts
    tasks = tuple(map(Task.model_validate, TASKS))
    engine, server = EngineSubject(sample_build.engine.path), ServedSubject(gateway.url)
    cut = [engine.ids(text)[:64] for text in texts]
    assert cut == [server.ids(text)[:64] for text in texts]
    found = compare(engine.rows(cut), server.rows(cut))
    assert found.tokens == 3 * 63
    assert found.perplexity_ratio == pytest.approx(1, abs=0.005)
    assert found.agreement is not None and found.agreement > 0.98
    assert found.kl is not None and found.kl < 1e-3
    assert engine.answers(tasks) == server.answers(tasks)


def test_asked_step_by_step_a_server_tells_the_same_likeliest_tokens(gateway: Gateway) -> None:
    """As servers are asked that tell nothing of a prompt."""
    server = ServedSubject(gateway.url)
    ids = server.ids(work_of(Quality()).texts[0])[:48]
    (told_at_once,) = server.rows([ids])
    (step_by_step,) = steps.positions(server._post, ids, CHUNK)
    assert step_by_step.tokens == told_at_once.tokens and step_by_step.log_probs is None
    for one, other in zip(step_by_step.top, told_at_once.top, strict=True):
        assert len(one) == 5
        assert list(one.values()) == pytest.approx(list(other.values())[:5], abs=0.2)
    found = compare([step_by_step], [step_by_step])
    assert (found.perplexity, found.perplexity_ratio, found.agreement, found.kl) == (None, None, 1, 0)
    with pytest.raises(InputError, match="by their ids and the other by their texts"):
        compare([told_at_once], [step_by_step])


@pytest.mark.slow
def test_a_server_is_judged_beside_the_plans_unquantized_build(
    gateway: Gateway, sample_build: BuildResult, tasks_file: Path, tmp_path: Path
) -> None:
    plan = tmp_path / "conch.yaml"
    plan.write_text(SAMPLE_PLAN + "quality: {samples: 3, max_length: 64, agreement_min: 0.8, kl_max: 0.1}\n")
    figures = told(plan, "--tasks", tasks_file)["figures"]
    beside = told(plan, "--tasks", tasks_file, "--url", gateway.url)["figures"]
    assert beside["text"]["baseline_perplexity"] == pytest.approx(figures["text"]["baseline_perplexity"], rel=1e-3)
    assert beside["text"]["perplexity"] == pytest.approx(figures["text"]["perplexity"], rel=0.01)
    assert figures["text"]["kl_exact"] and not beside["text"]["kl_exact"]
    assert 0 < beside["text"]["kl"] <= figures["text"]["kl"] * 1.1
    assert figures["tasks"]["valid"] == beside["tasks"]["valid"] == 1
    assert beside["samples"] == figures["samples"]


@pytest.mark.slow
def test_a_broken_limit_gives_exit_code_3_and_is_named_beside_the_figures(gateway: Gateway, tmp_path: Path) -> None:
    plan = tmp_path / "conch.yaml"
    plan.write_text(SAMPLE_PLAN + "quality: {samples: 1, max_length: 16, perplexity_max: 1.5}\n")
    done = conch_eval(plan, "--url", gateway.url, "--baseline-url", gateway.url, "--show", 1)
    assert done.exit_code == 3
    assert "not held: perplexity" in done.stderr and "is above 1.5" in done.stderr
    assert "<= 1.5" in done.stdout and "no" in done.stdout
    assert "What is the capital of France?" in done.stdout and "baseline  the same" in done.stdout


def test_a_server_alone_has_a_perplexity_and_answers(gateway: Gateway, tasks_file: Path) -> None:
    found = told("--url", gateway.url, "--tasks", tasks_file, "--samples", 1, "--max-length", 32)["figures"]
    assert found["text"]["tokens"] == 31 and found["text"]["perplexity"] > 1
    assert (found["text"]["kl"], found["baseline_tasks"]) == (None, None)
    assert found["tasks"]["exact_match"] == 0.5
    answers = told("--url", gateway.url, "--tasks", tasks_file, "--no-text")["figures"]
    assert answers["text"] is None and answers["tasks"] == found["tasks"]


@pytest.mark.slow
def test_engines_that_are_served_one_after_the_other_are_judged_as_those_in_process(
    sample_build: BuildResult,
) -> None:
    """How GPUs are judged, with an engine that runs here."""
    plan = parse_plan(SAMPLE_PLAN)
    work = Work((), 32, tuple(map(Task.model_validate, TASKS)))
    with served(plan, Store(), lambda text: None) as subject:
        recorded = Recorded.of(subject, work)
    engine = EngineSubject(sample_build.engine.path)
    assert judge(recorded, engine, work) == judge(engine, engine, work)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--url", "http://127.0.0.1:1"), 5, "no server answers there"),
        (("--url", "127.0.0.1:8080"), 2, "is not the address of a gateway"),
        (("--baseline-url", "http://127.0.0.1:1"), 2, "go with --url"),
        (("--url", "http://127.0.0.1:1", "--text", "/nowhere.txt"), 2, "/nowhere.txt: cannot be read"),
        (("--url", "http://127.0.0.1:1", "--tasks", "/dev/null"), 2, "/dev/null: holds no tasks"),
        (("/nowhere.yaml",), 2, "no such plan file"),
    ],
)
def test_wrong_input_gets_one_sentence(arguments: tuple[str, ...], code: int, said: str) -> None:
    done = conch_eval(*arguments)
    assert done.exit_code == code
    assert said in done.stderr and done.stderr.count("\n") == 1


def test_a_model_that_the_server_has_not_is_named(gateway: Gateway) -> None:
    done = conch_eval("--url", gateway.url, "--model", "other")
    assert done.exit_code == 2 and "other" in done.stderr
