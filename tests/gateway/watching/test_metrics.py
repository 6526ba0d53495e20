"""Figures of engines and machines as one text, and what an answer's clock makes of times."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from conch.gateway.watching.metrics import Metrics, Watch
from conch.gateway.watching.metrics.engine import Adapters, Reading, adapter_family, engine_families, reading_of
from conch.gateway.watching.metrics.machine import Gpu, Gpus, Host, gpu_families, read_host

TRITON = """
# TYPE nv_trt_llm_request_metrics gauge
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="scheduled",version="1"} 3
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="waiting",version="1"} 2.000000
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max",model="tensorrt_llm",version="1"} 64
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="tokens_per",model="tensorrt_llm",version="1"} 32
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction",model="tensorrt_llm",version="1"} 0.25
conch_engine_prefix_hit_tokens_total{model="tensorrt_llm",version="1"} 7
nv_inference_request_success{model="tensorrt_llm",version="1"} 5
"""


class Families:
    def __init__(self, families: Any) -> None:
        self.families = list(families)

    def collect(self) -> Any:
        return self.families


def text_of(families: Any) -> str:
    return generate_latest(Families(families)).decode()  # type: ignore[arg-type]


def samples(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    found: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in found, f"{key} is told twice"
            found[key] = sample.value
    return found


@pytest.mark.conforms("OBS-1")
def test_several_models_and_servers_share_a_family_and_keep_their_samples_apart() -> None:
    text = text_of(
        engine_families([reading_of(TRITON, "a", "0"), reading_of(TRITON, "a", "1"), reading_of(TRITON, "b", "0")], {})
    )
    assert text.count("# TYPE vllm:num_requests_running gauge") == 1
    running = {labels: value for (name, labels), value in samples(text).items() if name == "vllm:num_requests_running"}
    assert {tuple(sorted(dict(labels).values())) for labels in running} == {("0", "a"), ("1", "a"), ("0", "b")}
    assert set(running.values()) == {3.0}


def test_tritons_names_become_vllms() -> None:
    text = text_of(engine_families([reading_of(TRITON, "a", "0")], {}))
    assert 'vllm:num_requests_waiting{engine="0",model_name="a"} 2.0' in text
    assert 'vllm:kv_cache_usage_perc{engine="0",model_name="a"} 0.25' in text
    assert "# TYPE vllm:prefix_cache_hits_total counter" in text
    assert 'vllm:cache_config_info{block_size="32",engine="0",model_name="a",num_gpu_blocks="64"} 1.0' in text
    assert "nv_" not in text


def test_who_waits_in_the_gateway_waits_too() -> None:
    readings = [reading_of(TRITON, "a", "0"), reading_of(TRITON, "a", "1"), reading_of(TRITON, "b", "0")]
    text = text_of(engine_families(readings, {"a": 5}))
    for model, engine, waiting in (("a", "0", 7), ("a", "1", 2), ("b", "0", 2)):
        assert f'vllm:num_requests_waiting{{engine="{engine}",model_name="{model}"}} {waiting}.0' in text


def test_what_no_engine_tells_is_left_out() -> None:
    assert text_of(engine_families([Reading("a", "0", {})], {"a": 1})) == ""
    assert text_of(adapter_family([])) == ""


def test_adapters_are_told_by_what_their_requests_do() -> None:
    listed = [
        {"name": "pirate", "running": 2, "waiting": 0},
        {"name": "poet", "running": 1, "waiting": 3},
        {"name": "idle", "running": 0, "waiting": 0},
    ]
    text = text_of(adapter_family([Adapters('odd "name"\n', 4, listed)]))
    ((_, labels),) = samples(text)
    assert dict(labels) == {
        "model_name": 'odd "name"\n',
        "max_lora": "4",
        "running_lora_adapters": "pirate,poet",
        "waiting_lora_adapters": "poet",
    }


def test_an_answers_time_is_told_phase_by_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter((10.0, 11.0, 12.0, 13.5, 14.0))
    monkeypatch.setattr("conch.gateway.watching.metrics.watch.time", SimpleNamespace(perf_counter=lambda: next(times)))
    metrics = Metrics()
    watch = Watch(metrics.of("m"), 5, streaming=True, began_at=8.0, on_first=lambda: None)
    for count in (1, 2, 1):
        watch.tokens(count)
    watch.end("stop")
    found = samples(generate_latest(metrics.registry).decode())

    def told(name: str) -> float:
        return found[f"vllm:{name}_sum", frozenset({("model_name", "m"), ("variant", "")})]

    assert told("time_to_first_token_seconds") == 3.0  # its wait for its turn included
    assert told("e2e_request_latency_seconds") == 6.0
    assert told("request_inference_time_seconds") == 4.0
    assert told("request_prefill_time_seconds") == 1.0
    assert told("request_decode_time_seconds") == 3.0
    assert told("inter_token_latency_seconds") == 2.5
    assert told("request_time_per_output_token_seconds") == pytest.approx(2.5 / 3)


def test_variants_have_children_of_their_own() -> None:
    metrics = Metrics()
    model = metrics.of("m")
    variant = model.of_variant("trial/b")
    assert variant is model.of_variant("trial/b")
    variant.prompt_tokens.inc(3)
    found = samples(generate_latest(metrics.registry).decode())
    for name, value in (("trial/b", 3.0), ("", 0.0)):
        assert found["vllm:prompt_tokens_total", frozenset({("model_name", "m"), ("variant", name)})] == value


def test_a_kind_of_failure_is_there_before_it_occurs_and_new_ones_may_come() -> None:
    metrics = Metrics()
    metrics.of("m").failed("a_new_kind")
    text = generate_latest(metrics.registry).decode()
    assert 'conch:request_errors_total{kind="engine_error",model_name="m",variant=""} 0.0' in text
    assert 'kind="a_new_kind",model_name="m",variant=""} 1.0' in text


def test_the_machine_is_read_as_linux_tells_it(tmp_path: Path) -> None:
    (tmp_path / "stat").write_text("cpu  100 0 200 300 100 0 0 0 0 0\ncpu0 1 1 1 1\n")
    (tmp_path / "meminfo").write_text("MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: 400 kB\n")
    assert read_host(tmp_path) == Host(3.0, 4.0, 1000 * 1024, 400 * 1024)
    assert read_host(tmp_path / "nowhere") is None


def test_gpus_are_told_one_by_one() -> None:
    gpus = [Gpu(0, "GPU-a", "H100", 0.5, 10, 80), Gpu(1, "GPU-b", "H100", 0.25, 20, 80)]
    found = samples(text_of(gpu_families(gpus)))
    labels = frozenset({("gpu", "1"), ("uuid", "GPU-b"), ("name", "H100")})
    assert found["conch:gpu_utilization_ratio", labels] == 0.25
    assert found["conch:gpu_memory_used_bytes", labels] == 20


def test_gpus_that_are_here_are_read_and_a_machine_without_has_none() -> None:
    for gpu in Gpus().read():
        assert 0 <= gpu.utilization <= 1
        assert 0 <= gpu.used_bytes <= gpu.memory_bytes
