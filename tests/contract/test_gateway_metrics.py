"""What /metrics tells of requests, of the engine and of the machine, before a real engine."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from conch.gateway.app import create_app
from conch.gateway.settings import GatewaySettings, ModelSettings, Server
from tests.conftest import SAMPLE_PLAN
from tests.contract.conftest import Gateway, eventually, running_gateway

if TYPE_CHECKING:
    from conch.triton import TritonServer
    from conch_build.pipeline import BuildResult

SMALL = {"prompt": "1, 2, 3,", "max_tokens": 6, "ignore_eos": True}


@pytest.fixture(scope="module")
def used(stack_triton: TritonServer, sample_build: BuildResult) -> Iterator[Gateway]:
    """A gateway of its own, whose counts start at zero: one whole answer, one stream, one refusal, one client that
    went away."""
    with running_gateway(stack_triton, sample_build.engine.path) as gateway:
        gateway.ok("completions", **SMALL)
        gateway.ok("completions", **SMALL, stream=True)
        gateway.ok("completions", **{**SMALL, "n": 2})
        gateway.post("completions", {**SMALL, "max_tokens": 100_000})
        gateway.post("completions", {**SMALL, "model": "nobody"})
        body = {**SMALL, "max_tokens": 1000, "stream": True}
        with gateway.http.stream("POST", "/v1/completions", json=body) as response:
            for _, _line in zip(range(5), response.iter_lines(), strict=False):
                pass
        assert eventually(lambda: gateway.metric("conch:cancelled_requests_total") == 1)
        yield gateway


def valid(text: str) -> None:
    """Each family is told once, and each sample."""
    families = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(families) == len(set(families))
    samples = [line.rsplit(" ", 1)[0] for line in text.splitlines() if not line.startswith("#")]
    assert len(samples) == len(set(samples))


@pytest.mark.conforms("OBS-1")
def test_each_family_is_told_once_and_each_sample_once(used: Gateway) -> None:
    text = used.http.get("/metrics").text
    valid(text)
    parsed = {family.name for family in text_string_to_metric_families(text)}
    assert parsed >= {"vllm:num_requests_running", "vllm:time_to_first_token_seconds", "process_cpu_seconds"}


@pytest.mark.conforms("OBS-1")
async def test_several_models_and_servers_share_families_and_one_that_is_down_is_left_out(
    stack_triton: TritonServer, sample_build: BuildResult, tmp_path: Path
) -> None:
    up, down = (
        Server(stack_triton.grpc_url, stack_triton.metrics_url),
        Server("127.0.0.1:9", "http://127.0.0.1:9/metrics"),
    )
    again = replace(up, grpc_url=up.grpc_url.replace("127.0.0.1", "localhost"))
    one = ModelSettings.for_engine(sample_build.engine.path, [up, again])
    two = replace(one, name='an "odd" name', servers=(up, down))
    app = create_app(GatewaySettings((one, two), home=tmp_path))
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as http,
    ):
        text = (await http.get("/metrics")).text
    valid(text)
    family = next(f for f in text_string_to_metric_families(text) if f.name == "vllm:num_requests_running")
    assert [(sample.labels["model_name"], sample.labels["engine"]) for sample in family.samples] == [
        ("smollm2", "0"),
        ("smollm2", "1"),
        ('an "odd" name', "0"),
    ]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool")
def test_promtool_finds_nothing_but_the_colons_of_vllms_names(used: Gateway) -> None:
    text = used.http.get("/metrics").text
    run = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False)
    words = "metric names should not contain ':'"
    assert not [line for line in (run.stdout + run.stderr).splitlines() if words not in line]


def test_times_of_a_request_are_counted_phase_by_phase(used: Gateway) -> None:
    whole, stream_only = 4 + 1, 1 + 1  # answers, and the one that was left
    for name, count in {
        "e2e_request_latency": whole,
        "request_inference_time": whole,
        "request_queue_time": 4,
        "time_to_first_token": stream_only,
        "request_prefill_time": stream_only,
        "request_decode_time": stream_only,
        "request_time_per_output_token": stream_only,
    }.items():
        assert used.metric(f"vllm:{name}_seconds_count") == count, name
    phases = [used.metric(f"vllm:request_{phase}_time_seconds_sum") for phase in ("prefill", "decode")]
    assert min(phases) > 0
    assert sum(phases) < used.metric("vllm:request_inference_time_seconds_sum")


@pytest.mark.conforms("OBS-2")
def test_a_client_that_leaves_is_counted_once_with_what_it_got(used: Gateway) -> None:
    assert used.metric("vllm:request_success_total", finished_reason="abort") == 1
    assert used.metric("vllm:request_success_total", finished_reason="length") == 4
    generated = used.metric("vllm:generation_tokens_total")
    assert generated == used.metric("vllm:request_generation_tokens_sum") >= 4 * 6 + 1
    assert used.metric("vllm:prompt_tokens_total") == used.metric("vllm:request_prompt_tokens_sum")


def test_parameters_are_counted_as_they_were_asked_for(used: Gateway) -> None:
    assert used.metric("vllm:request_params_n_sum") == 1 + 1 + 2 + 1
    assert used.metric("vllm:request_params_max_tokens_sum") == 6 + 6 + 12 + 1000
    assert used.metric("vllm:request_max_num_generation_tokens_count") == 4


def test_failures_are_counted_by_kind_and_responses_by_route_and_status(used: Gateway) -> None:
    assert used.metric("conch:request_errors_total", kind="invalid_request") == 1
    assert used.metric("conch:http_responses_total", route="/v1/completions", status="400") == 1
    assert used.metric("conch:http_responses_total", route="/v1/completions", status="404") == 1
    used.http.get("/a/path/of/the/callers")
    assert used.metric("conch:http_responses_total", route="none", status="404") == 1


def test_the_engine_the_machine_and_the_process_are_told_of(used: Gateway) -> None:
    assert used.metric("vllm:prefix_cache_queries_total", model_name="smollm2", engine="0") > 0
    assert used.metric("vllm:cache_config_info", block_size="32") == 1
    assert 0 <= used.metric("vllm:kv_cache_usage_perc") <= 1
    assert used.metric("conch:host_cpu_seconds_total", mode="busy") > 0
    text = used.http.get("/metrics").text
    assert "\nprocess_resident_memory_bytes " in text
    assert "\nconch:host_memory_available_bytes " in text


def test_variants_of_an_experiment_have_figures_of_their_own(
    stack_triton: TritonServer, sample_build: BuildResult, tmp_path: Path
) -> None:
    variants = "{old: {model: smollm2, weight: 0}, new: {model: smollm2}}"
    plan = tmp_path / "conch.yaml"
    plan.write_text(
        f"""{SAMPLE_PLAN}
serving:
  gateway:
    experiments: {{trial: {{variants: {variants}}}}}
    database: {{url: 'sqlite:///{tmp_path / "gateway.db"}'}}
"""
    )
    with running_gateway(stack_triton, sample_build.engine.path, "--plan", str(plan)) as gateway:
        gateway.ok("completions", **SMALL, model="trial")
        gateway.ok("completions", **SMALL, model="smollm2")
        for variant in ("trial/new", ""):
            labels = {"model_name": "smollm2", "variant": variant}
            assert gateway.metric("vllm:e2e_request_latency_seconds_count", **labels) == 1
            assert gateway.metric("vllm:generation_tokens_total", **labels) == 6
        rows = gateway.http.get("/dashboard/data").json()["rows"]
    assert [(row["model"], row["variant"], row["requests"]) for row in rows] == [
        ("smollm2", "", 1),
        ("trial", "new", 1),
    ]


def test_requests_that_the_gateway_keeps_waiting_are_seen_by_who_balances(
    stack_triton: TritonServer, sample_build: BuildResult, tmp_path: Path
) -> None:
    plan = tmp_path / "conch.yaml"
    plan.write_text(f"{SAMPLE_PLAN}\nserving: {{gateway: {{queue: {{running: 1}}}}}}\n")
    body = {**SMALL, "max_tokens": 300}
    with running_gateway(stack_triton, sample_build.engine.path, "--plan", str(plan)) as gateway:
        ask = partial(httpx.post, f"{gateway.url}/v1/completions", json=body, timeout=60, trust_env=False)
        with ThreadPoolExecutor(3) as threads:
            asked = [threads.submit(ask) for _ in range(3)]
            assert eventually(lambda: gateway.metric("vllm:num_requests_waiting") == 2)
            assert gateway.metric("vllm:num_requests_running") <= 1
            assert gateway.metric("conch:queue_requests") == 2
        assert {request.result().status_code for request in asked} == {200}
        assert gateway.metric("vllm:num_requests_waiting") == 0
