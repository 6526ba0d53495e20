"""Advice over the usual matrix of models, machines, workloads and goals: every plan passes `conch check`."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from conch_build.advise.choose import Advice, advise
from conch_build.advise.rules import TABLE
from conch_build.advise.situation import GOALS, USES, Situation
from conch_build.advise.write import plan_text
from conch_build.checkpoint import Checkpoint
from conch_build.cli import build_commands
from conch_build.errors import InputError
from conch_build.gpu.cards import GPUS
from conch_build.plan import Plan, load_plan, parse_plan
from conch_build.preflight import check
from tests.build.configs import CONFIGS, Name, described

PLACES: list[tuple[Name, str, int]] = [
    ("smollm2-135m", "rtx4090", 1),
    ("llama-3-8b", "rtx4090", 1),
    ("llama-3-8b", "rtx5090", 1),
    ("llama-3-8b", "l4", 1),
    ("llama-3-8b", "a10", 2),
    ("llama-3-8b", "a100", 1),
    ("llama-3-8b", "b200", 1),
    ("qwen3-32b", "h100", 2),
    ("mixtral-8x7b", "h100", 2),
    ("mixtral-8x7b", "a100", 4),
    ("llama-3.3-70b", "h100", 4),
    ("llama-3.3-70b", "a100", 4),
    ("llama-3.3-70b", "b200", 2),
    ("llama-3.3-70b", "rtx4090", 8),
]


def situation(name: Name = "llama-3-8b", gpu: str | None = "h100", gpus: int = 1, **asked: Any) -> Situation:
    folder = CONFIGS / name
    card = None if gpu is None else GPUS[gpu]
    return Situation(Checkpoint(folder, str(folder), described(name)), gpu=card, gpus=gpus, **asked)


def advised(*place: Any, **asked: Any) -> Advice:
    asked_of = situation(*place, **asked)
    return advise(asked_of, "model", asked_of.checkpoint.source)


def plan_of(*place: Any, **asked: Any) -> Plan:
    return advised(*place, **asked).plan


def errors_of(plan: Plan) -> list[str]:
    return [str(violation) for violation in check(plan) if violation.severity == "error"]


def fits(place: tuple[Name, str, int], goal: str) -> bool:
    """16 bits of a 70B model are too large for eight consumer cards together with its requests, and say so."""
    return place != ("llama-3.3-70b", "rtx4090", 8) or goal != "accuracy"


@pytest.mark.parametrize("place", PLACES, ids=lambda place: "-".join(map(str, place)))
def test_every_plan_passes_check(place: tuple[Name, str, int]) -> None:
    for goal, use in product(GOALS, ("chat", "batch") if place[0] == "mixtral-8x7b" else USES):
        if not fits(place, goal):
            continue
        advice = advised(*place, goal=goal, use=use)
        written = parse_plan(plan_text(advice))
        assert written == advice.plan
        assert errors_of(written) == [], (goal, use)
        assert written.engine.parallel.tensor * written.serving.triton.instances <= place[2]


@pytest.mark.parametrize("goal", GOALS)
def test_every_plan_for_a_cpu_passes_check(checkpoint: Path, goal: str) -> None:
    done = conch("advise", checkpoint, "--goal", goal, "-o", checkpoint.parent / "plan.yaml")
    assert done.exit_code == 0, done.output
    assert errors_of(load_plan(checkpoint.parent / "plan.yaml")) == []


# The decision matrix


def test_streaming_chat_has_small_steps_and_reuses_its_turns() -> None:
    engine = plan_of(goal="latency", use="chat").engine
    assert (engine.max_batch_size, engine.max_num_tokens, engine.stream_interval) == (16, 1024, 1)
    assert engine.kv_cache.reuse and engine.chunked_prefill


def test_an_offline_batch_has_large_steps_and_streams_in_lumps() -> None:
    engine = plan_of(goal="throughput", use="batch", requests=400).engine
    assert (engine.max_batch_size, engine.max_num_tokens, engine.stream_interval) == (400, 8192, 8)


def test_accuracy_for_research_keeps_every_number_as_it_was_trained() -> None:
    plan = plan_of(goal="accuracy")
    assert (plan.quantization.format, plan.quantization.kv_cache, plan.engine.kv_cache.reuse) == ("none", "auto", False)


@pytest.mark.parametrize(
    ("place", "goal", "form"),
    [
        (("llama-3-8b", "rtx4090", 1), "balanced", "fp8"),
        (("llama-3-8b", "h100", 1), "memory", "int4_awq"),
        (("llama-3-8b", "a100", 1), "throughput", "none"),
        (("llama-3-8b", "a10", 1), "balanced", "int4_awq"),
        (("llama-3.3-70b", "h100", 4), "cost", "fp8"),
        (("llama-3.3-70b", "b200", 1), "cost", "nvfp4"),
        (("smollm2-135m", "b200", 1), "memory", "fp8"),
        (("smollm2-135m", None, 1), "memory", "int8"),
        (("llama-3-8b", None, 1), "memory", "int4_awq"),
        (("mixtral-8x7b", "h100", 2), "memory", "fp8"),
    ],
)
def test_the_format_is_the_gpus_the_models_and_the_goals(place: tuple[Any, ...], goal: str, form: str) -> None:
    assert plan_of(*place, goal=goal, tokens=512, requests=8).quantization.format == form


def test_latency_spreads_a_large_model_and_throughput_repeats_it() -> None:
    fast, wide = (plan_of("qwen3-32b", "h200", 4, goal=goal) for goal in ("latency", "throughput"))
    assert (fast.engine.parallel.tensor, fast.serving.triton.instances) == (4, 1)
    assert (wide.engine.parallel.tensor, wide.serving.triton.instances) == (1, 4)


def test_a_large_model_is_spread_until_its_requests_fit() -> None:
    plan = plan_of("llama-3.3-70b", "h100", 4, goal="throughput", requests=128)
    assert plan.engine.parallel.tensor > 1


def test_answers_that_repeat_the_prompt_are_guessed_from_it_where_few_wait() -> None:
    few, many = (plan_of(goal="latency", use="rag", requests=requests) for requests in (4, 64))
    assert (few.engine.speculation.method, many.engine.speculation.method) == ("ngram", "none")


def test_what_preflight_refuses_is_passed_over_and_told() -> None:
    advice = advised("mixtral-8x7b", "h100", 2, goal="memory")
    choice = next(choice for choice in advice.choices if choice.key == "quantization.format")
    assert choice.value == "fp8"
    assert choice.refused and choice.refused[0].startswith("int4_awq: ")


def test_a_model_that_fits_in_no_way_is_refused() -> None:
    with pytest.raises(InputError, match=r"no plan fits this machine: .* do not fit the"):
        advised("llama-3.3-70b", "l4", 1)


# The table


def test_every_row_is_reached_or_is_a_fallback_and_says_why() -> None:
    for row in TABLE:
        assert row.when and row.why and row.key in _keys()
    for key in dict.fromkeys(row.key for row in TABLE):
        rows = [row for row in TABLE if row.key == key]
        assert len({row.when for row in rows}) == len(rows), key


def _keys() -> set[str]:
    found: set[str] = set()

    def walk(part: Any, prefix: str) -> None:
        for name in type(part).model_fields:
            value = getattr(part, name)
            found.add(f"{prefix}{name}")
            if hasattr(type(value), "model_fields"):
                walk(value, f"{prefix}{name}.")

    walk(parse_plan("{name: a, model: {checkpoint: b}}"), "")
    return found


# The command


def conch(*arguments: object) -> Result:
    return CliRunner().invoke(build_commands, [str(argument) for argument in arguments])


def test_advice_as_text_gives_each_choice_its_reason() -> None:
    done = conch("advise", CONFIGS / "llama-3-8b", "--gpu", "h100")
    assert done.exit_code == 0, done.output
    assert "quantization.format: fp8\n    Half the memory" in done.stdout
    assert "Excludes " in done.stdout


def test_advice_as_json_is_for_scripts() -> None:
    report = json.loads(conch("advise", CONFIGS / "llama-3-8b", "--gpu", "h100", "--json").stdout)
    assert set(report) == {"plan", "choices", "file"}
    assert set(report["choices"][0]) == {"key", "value", "why", "excludes", "refused"}


def test_the_rules_can_be_read() -> None:
    done = conch("advise", "--rules")
    assert done.exit_code == 0
    assert all(row.key in done.stdout for row in TABLE)


@pytest.mark.parametrize("profile", ["latency", "throughput", "balanced", "memory"])
def test_init_writes_the_plan_of_a_profile(checkpoint: Path, profile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(checkpoint.parent)
    assert conch("init", checkpoint, "--profile", profile).exit_code == 0
    assert check(load_plan("conch.yaml")) == []
    assert conch("init", checkpoint, "--profile", profile).exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--gpu", "h1000"], "Did you mean `h100`?"),
        (["--goal", "latncy"], "--goal: there is no `latncy`. Did you mean `latency`?"),
        (["--use", "xxx"], "Known: chat, rag, code, batch"),
        (["--tokens", "100000"], "from 2 to 8,192 positions"),
        (["--requests", "0"], "--requests: must be from 1 to 4,096"),
        (["--gpu", "h100", "--gpus", "16"], "one node of up to 8 GPUs"),
    ],
)
def test_wrong_input_gets_one_sentence(arguments: list[str], said: str) -> None:
    done = conch("advise", CONFIGS / "llama-3-8b", *arguments)
    assert (done.exit_code, "Traceback" in done.output) == (2, False)
    assert said.replace(" positions", "") in done.stderr
