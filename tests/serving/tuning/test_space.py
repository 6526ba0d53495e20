"""Which settings are tried, how a plan is written with others, and how it is served for a trial."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from conch.tuning.served import alone
from conch.tuning.space import DRAFT, KV_SIZE, changed, own_values, space_of, written
from conch_build.plan import Plan, parse_plan

TEXT = """# mine
name: m
model: {checkpoint: sample}
engine:
  max_batch_size: 12   # at once
  kv_cache: {size: 200MiB}
slo: {ttft_p95: 100ms}
"""


def plan_of(**engine: Any) -> Plan:
    return Plan.model_validate({"name": "m", "model": {"checkpoint": "sample"}, "engine": engine})


def test_the_plans_own_values_are_among_the_choices() -> None:
    space = space_of(parse_plan(TEXT), cores=2)
    assert all(setting.own in setting.choices for setting in space)
    own = own_values(space)
    assert own["engine.max_batch_size"] == 12 and own[KV_SIZE] == "200MiB" and own["engine.threads"] == "auto"
    assert changed(space, own) == {}


def test_speculation_is_tried_without_a_second_model_and_a_named_one_with_other_lengths() -> None:
    assert [s.choices for s in space_of(plan_of(), 2) if s.name == DRAFT] == [("none", "ngram 2", "ngram 4", "ngram 8")]
    draft = plan_of(speculation={"method": "draft", "checkpoint": "sample", "max_draft_len": 3})
    assert [s.choices for s in space_of(draft, 2) if s.name == DRAFT] == [
        ("none", "draft 2", "draft 3", "draft 4", "draft 8")
    ]


def test_gpu_plans_have_no_threads_and_a_share_of_memory_is_left_alone() -> None:
    names = {setting.name for setting in space_of(plan_of(backend="tensorrt", kv_cache={"concurrency": 4}), 2)}
    assert "engine.threads" not in names and KV_SIZE not in names and "engine.max_batch_size" in names


def test_a_tuned_plan_reads_as_what_was_tried_and_keeps_its_comments() -> None:
    text, comments_kept = written(TEXT, {"engine.max_batch_size": 32, KV_SIZE: "400MiB", DRAFT: "ngram 8"})
    assert comments_kept and text.startswith("# mine") and "# at once" in text
    engine = parse_plan(text).engine
    assert (engine.max_batch_size, engine.kv_cache.size) == (32, 400 << 20)
    assert (engine.speculation.method, engine.speculation.max_draft_len) == ("ngram", 8)
    assert parse_plan(written(text, {DRAFT: "none"})[0]).engine.speculation.method == "none"


def test_a_trial_is_served_to_this_machine_alone_without_the_plans_keys_certificate_and_gate(tmp_path: Path) -> None:
    text = TEXT + (
        "quality: {kl_max: 0.1}\n"
        "serving:\n  gateway:\n    host: 0.0.0.0\n    tls: {certificate: a.pem}\n    queue: {waiting: 7}\n"
    )
    plan = parse_plan(alone(text, tmp_path))
    gateway = plan.serving.gateway
    assert (gateway.host, gateway.port, gateway.tls.certificate) == ("127.0.0.1", 0, None)
    assert gateway.queue.waiting == 7 and gateway.database.url == f"sqlite:///{tmp_path}/gateway.db"
    assert plan.serving.triton.grpc_port == 0 and not plan.quality.limits
    assert yaml.safe_load(text)["slo"] == {"ttft_p95": "100ms"} and plan.slo.ttft_p95 == 0.1
