"""Disaggregated serving: what a plan becomes, and every rule that its three files must keep."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from conch_build.disaggregated import recipe, workers_of
from conch_build.disaggregated.arguments import longest_prompt, worker_args
from conch_build.disaggregated.proxy import proxy_config
from conch_build.disaggregated.rules import Cluster, check, problems_of
from conch_build.errors import PlanError
from conch_build.plan import Plan, parse_plan
from conch_build.profiles import PROFILES
from conch_build.recipe import TextFile
from tests.build.models import LLAMA_8B

OLD, NEW = PROFILES["1.2.1"], PROFILES["1.3.0rc21"]


def plan_for(disaggregated: dict[str, Any] | None = None, engine: dict[str, Any] | None = None, **parts: Any) -> Plan:
    data = {"name": "p", "model": {"checkpoint": "x"}, "target": {"gpu": "h100"}, **parts}
    data["engine"] = {"backend": "pytorch", "max_seq_len": 1000, **(engine or {})}
    data["serving"] = {"disaggregated": disaggregated or {}}
    return parse_plan(yaml.safe_dump(data))


def cluster_of(plan: Plan) -> Cluster:
    context, generation = (worker_args(plan, LLAMA_8B, OLD, role) for role in ("context", "generation"))
    return Cluster(proxy_config(plan, workers_of(plan)), context, generation, longest_prompt(plan))


def refused(where: str, disaggregated: dict[str, Any] | None = None, **parts: Any) -> str:
    with pytest.raises(PlanError) as error:
        recipe(plan_for(disaggregated, **parts), LLAMA_8B, Path("/m"), Path("/out"))
    assert error.value.where == where
    return error.value.message


def test_workers_take_machines_gpus_and_ports_in_their_order() -> None:
    plan = plan_for(
        {"context": {"instances": 2, "tensor": 2}, "generation": {"tensor": 4}, "hosts": ["a", "b"], "port": 9000},
        target={"gpu": "h100", "gpus_per_node": 4},
    )
    assert [(w.name, w.url, w.gpus) for w in workers_of(plan)] == [
        ("context-0", "a:9001", (0, 1)),
        ("context-1", "a:9002", (2, 3)),
        ("generation-0", "b:9003", (0, 1, 2, 3)),
    ]


def test_a_worker_does_not_span_machines_and_gpus_are_not_shared() -> None:
    eight = {"gpu": "h100", "gpus_per_node": 8}
    assert "GPUs" in refused("serving.disaggregated", {"generation": {"tensor": 16}}, target=eight)
    assert "9 GPUs" in refused("serving.disaggregated", {"context": {"instances": 8}}, target=eight)
    assert len(workers_of(plan_for({"context": {"instances": 7}}, target=eight))) == 8


@pytest.mark.parametrize("host", ["http://a", "a:8000", "a/b", "", "-a", "$(id)"])
def test_hosts_are_names_alone(host: str) -> None:
    assert "not the name of a machine" in refused("serving.disaggregated.hosts", {"hosts": [host]})


def test_a_host_is_named_once_and_ports_end() -> None:
    assert "twice" in refused("serving.disaggregated.hosts", {"hosts": ["a", "a"]})
    assert "65536" in refused("serving.disaggregated.port", {"port": 65534})
    assert workers_of(plan_for({"port": 65533}))[-1].port == 65535


def test_only_the_llm_api_is_served_so_and_its_gpus_are_the_workers() -> None:
    assert "tensorrt" in refused("serving.disaggregated", engine={"backend": "tensorrt"})
    assert "does not apply" in refused("engine.parallel", engine={"parallel": {"tensor": 2}})
    plain = parse_plan("{name: p, model: {checkpoint: x}, engine: {backend: pytorch}}")
    with pytest.raises(PlanError, match="not in the plan"):
        recipe(plain, LLAMA_8B, Path("/m"), Path("/out"))


def test_workers_have_the_plans_arguments_and_their_own() -> None:
    own = {"generation": {"tensor": 2, "llm_args": {"print_iter_log": True}}}
    cluster = cluster_of(plan_for(own, engine={"max_batch_size": 16}))
    assert (cluster.context["max_batch_size"], cluster.generation["max_batch_size"]) == (16, 16)
    assert (cluster.context["tensor_parallel_size"], cluster.generation["tensor_parallel_size"]) == (1, 2)
    assert "print_iter_log" not in cluster.context and cluster.generation["print_iter_log"] is True


def test_arguments_of_workers_are_checked_as_the_plans_are() -> None:
    own = {"context": {"llm_args": {"print_iter_lgo": True}}}
    assert "print_iter_lgo" in refused("serving.disaggregated.context.llm_args", own)
    twice = {"context": {"llm_args": {"max_batch_size": 3}}}
    assert "decided by" in refused("serving.disaggregated.context.llm_args.max_batch_size", twice)


def test_the_buffer_holds_the_longest_prompt_in_whole_blocks() -> None:
    cluster = cluster_of(plan_for())
    assert cluster.longest_prompt == 1024
    for args in (cluster.context, cluster.generation):
        assert args["cache_transceiver_config"].items() >= {"backend": "DEFAULT", "max_tokens_in_buffer": 1024}.items()


def test_context_workers_of_1_2_run_without_the_overlap_scheduler_and_later_ones_with_it() -> None:
    cluster = cluster_of(plan_for())
    assert cluster.context["disable_overlap_scheduler"] is True
    assert "disable_overlap_scheduler" not in cluster.generation
    assert "disable_overlap_scheduler" not in worker_args(plan_for(), LLAMA_8B, NEW, "context")
    own = {"context": {"llm_args": {"disable_overlap_scheduler": False}}}
    refused("serving.disaggregated.context.llm_args.disable_overlap_scheduler", own)


def test_the_proxys_file_names_every_worker_of_each_group() -> None:
    proxy = proxy_config(plan := plan_for({"context": {"instances": 2}}), workers_of(plan))
    assert (proxy["hostname"], proxy["port"]) == ("localhost", 8000)
    assert proxy["context_servers"]["urls"] == ["localhost:8001", "localhost:8002"]
    assert proxy["context_servers"]["num_instances"] == 2
    assert proxy["generation_servers"]["urls"] == ["localhost:8003"]
    assert "conditional_disagg_config" not in proxy


def test_short_prompts_may_stay_where_answers_are_written() -> None:
    short = {"max_local_prefill_length": 256}
    proxy = proxy_config(plan := plan_for({**short, "router": "kv_cache_aware"}), workers_of(plan))
    assert proxy["conditional_disagg_config"] == short
    for router in ("round_robin", "load_balancing"):
        assert "kv_cache_aware" in refused("serving.disaggregated", {**short, "router": router})


def test_a_router_that_knows_caches_has_events_and_blocks_of_the_same_size() -> None:
    plan = plan_for({"router": "kv_cache_aware"}, engine={"kv_cache": {"tokens_per_block": 64}})
    cluster = cluster_of(plan)
    router = cluster.proxy["context_servers"]["router"]
    assert router == {"type": "kv_cache_aware", "max_batch_size": 64, "tokens_per_block": 64}
    assert cluster.context["kv_cache_config"]["event_buffer_max_size"] > 0
    assert not cluster_of(plan_for()).context["kv_cache_config"]["event_buffer_max_size"]
    reuse = {"kv_cache": {"reuse": False}}
    assert "reuse" in refused("serving.disaggregated.router", {"router": "kv_cache_aware"}, engine=reuse)


@pytest.mark.parametrize("router", ["round_robin", "load_balancing", "kv_cache_aware"])
@pytest.mark.parametrize("profile", [OLD, NEW])
def test_a_cluster_of_a_plan_keeps_every_rule(router: str, profile: Any) -> None:
    check(cluster_of(plan_for({"router": router})), profile)


Change = Callable[[dict[str, Any], dict[str, Any], dict[str, Any]], object]
BROKEN: list[tuple[str, Change]] = [
    ("schedule_style", lambda proxy, context, generation: proxy.update(schedule_style="context_first")),
    ("is given twice", lambda proxy, context, generation: proxy["context_servers"]["urls"].append("localhost:8002")),
    ("has no urls", lambda proxy, context, generation: proxy["generation_servers"].update(urls=[])),
    ("num_instances 2", lambda proxy, context, generation: proxy["context_servers"].update(num_instances=2)),
    ("is not host:port", lambda proxy, context, generation: proxy["context_servers"].update(urls=["http://a:1"])),
    ("is not host:port", lambda proxy, context, generation: proxy["context_servers"].update(urls=["a"])),
    ("proxy itself", lambda proxy, context, generation: proxy["context_servers"].update(urls=["localhost:8000"])),
    ("no router random", lambda proxy, context, generation: proxy["context_servers"].update(router={"type": "random"})),
    (
        "round_robin has no use_tokens",
        lambda proxy, context, generation: proxy["context_servers"]["router"].update(use_tokens=True),
    ),
    (
        "needs cache events of context workers",
        lambda proxy, context, generation: proxy["context_servers"].update(router={"type": "kv_cache_aware"}),
    ),
    (
        "counts blocks of 16 tokens",
        lambda proxy, context, generation: (
            proxy["generation_servers"].update(router={"type": "kv_cache_aware", "tokens_per_block": 16}),
            generation["kv_cache_config"].update(event_buffer_max_size=9),
        ),
    ),
    (
        "needs `kv_cache_config.enable_block_reuse` on generation workers",
        lambda proxy, context, generation: (
            proxy["generation_servers"].update(router={"type": "kv_cache_aware"}),
            generation["kv_cache_config"].update(event_buffer_max_size=9, enable_block_reuse=False),
        ),
    ),
    ("context workers need a", lambda proxy, context, generation: context.pop("cache_transceiver_config")),
    (
        "send caches by UCX",
        lambda proxy, context, generation: context["cache_transceiver_config"].update(backend="UCX"),
    ),
    (
        "generation workers need a",
        lambda proxy, context, generation: generation["cache_transceiver_config"].update(backend="MPI"),
    ),
    (
        "holds 512 tokens",
        lambda proxy, context, generation: generation["cache_transceiver_config"].update(max_tokens_in_buffer=512),
    ),
    (
        "tokens_per_block` is 32 on context workers and 64",
        lambda proxy, context, generation: generation["kv_cache_config"].update(tokens_per_block=64),
    ),
    (
        "dtype` is fp8 on context workers and auto",
        lambda proxy, context, generation: context["kv_cache_config"].update(dtype="fp8"),
    ),
    ("overlap", lambda proxy, context, generation: context.pop("disable_overlap_scheduler")),
    (
        "can hang",
        lambda proxy, context, generation: (
            context.update(pipeline_parallel_size=2),
            generation.update(tensor_parallel_size=2),
        ),
    ),
]


@pytest.mark.parametrize(("words", "change"), BROKEN)
def test_every_broken_rule_is_told(words: str, change: Change) -> None:
    good = cluster_of(plan_for())
    assert list(problems_of(good, OLD)) == []
    proxy, context, generation = (
        yaml.safe_load(yaml.safe_dump(dict(part))) for part in (good.proxy, good.context, good.generation)
    )
    change(proxy, context, generation)
    broken = replace(good, proxy=proxy, context=context, generation=generation)
    assert any(words in problem for problem in problems_of(broken, OLD))
    with pytest.raises(PlanError):
        check(broken, OLD)


def test_known_hangs_of_1_2_are_refused_there_alone() -> None:
    shapes = {"context": {"pipeline": 2}, "generation": {"tensor": 2}}
    assert "can hang" in refused("serving.disaggregated", shapes)
    recipe(plan_for(shapes, target={"gpu": "h100", "tensorrt_llm": NEW.name}), LLAMA_8B, Path("/m"), Path("/out"))
    recipe(plan_for({"context": {"pipeline": 2}}), LLAMA_8B, Path("/m"), Path("/out"))


def test_a_transport_of_the_plans_own_goes_to_both_or_is_refused() -> None:
    ucx = {"llm_args": {"cache_transceiver_config": {"backend": "UCX"}}}
    assert "by UCX" in refused("serving.disaggregated", {"context": ucx})
    cluster = cluster_of(plan_for({"context": ucx, "generation": ucx}))
    assert cluster.context["cache_transceiver_config"]["max_tokens_in_buffer"] == 1024
    check(cluster, OLD)


def test_the_files_are_those_that_the_commands_name() -> None:
    steps = recipe(plan_for(), LLAMA_8B, Path("/m"), Path("/out"))
    files = {step.path: step.text for step in steps.steps if isinstance(step, TextFile)}
    assert files.keys() == {f"/out/{name}" for name in ("context.yaml", "generation.yaml", "proxy.yaml", "disagg.sh")}
    for name in ("context.yaml", "generation.yaml", "proxy.yaml"):
        assert f'"$here"/{name}' in files["/out/disagg.sh"]
    assert yaml.safe_load(files["/out/proxy.yaml"])["port"] == 8000
    assert steps.commands[-1].image == OLD.container
