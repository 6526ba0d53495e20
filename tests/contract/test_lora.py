"""Adapters over a running Triton and gateway: by task id, by model name, loaded and unloaded while it serves."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from conch.triton import TritonServer
from conch_build.pipeline import BuildResult, build
from conch_build.plan import load_plan
from conch_build.store import Store
from tests.build.tiny import write_tiny
from tests.build.tiny_adapter import write_adapter
from tests.conftest import running_triton
from tests.contract.conftest import Gateway, running_gateway, text_of
from tests.contract.triton_calls import ask, metric, stream, tokens

pytest.importorskip("peft")

PROMPT = list(range(5, 45))
TARGETS = ["q_proj", "k_proj", "v_proj", "down_proj"]
GREEDY = {"prompt": PROMPT, "max_tokens": 16, "temperature": 0, "ignore_eos": True}


@dataclass(frozen=True)
class Stack:
    """Adapters `a`, `b` and `c`, two slots for them, and `model` without any."""

    folder: Path
    build: BuildResult
    triton: TritonServer
    gateway: Gateway

    def write(self, name: str, seed: int) -> None:
        shutil.rmtree(self.folder / name, ignore_errors=True)
        write_adapter(self.folder / "source", self.folder / name, seed=seed, size=0.3, target_modules=TARGETS)

    def text(self, model: str) -> str:
        return text_of(self.gateway.ok("completions", model=model, **GREEDY))

    def ids(self, number: int) -> list[int]:
        more = {"lora_task_id": number} if number else {}
        return ask(self.triton.grpc_url, "tensorrt_llm", tokens(PROMPT, 16, streaming=True, end_id=-1, **more)).ids

    def order(self, command: str, name: str) -> tuple[int, Any]:
        return self.gateway.post(f"{command}_lora_adapter", {"lora_name": name})

    def models(self) -> dict[str, Any]:
        return {card["id"]: card["parent"] for card in self.gateway.http.get("/v1/models").json()["data"]}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("lora")
    source = write_tiny(folder / "source")
    for seed, name in enumerate("abc", 1):
        write_adapter(source, folder / name, seed=seed, size=0.3, target_modules=TARGETS)
    plan = {
        "name": "model",
        "model": {"checkpoint": "./source"},
        "engine": {
            "max_seq_len": 512,
            "kv_cache": {"size": "16MiB"},
            "lora": {"max_loaded": 2, "adapters": {name: f"./{name}" for name in "abc"}},
        },
    }
    (folder / "conch.yaml").write_text(yaml.safe_dump(plan))
    built = build(load_plan(folder / "conch.yaml"), Store(folder / "store"))
    with (
        running_triton(built, folder) as server,
        running_gateway(server, built.engine.path, "--repository", str(built.repository.path)) as gateway,
    ):
        yield Stack(folder, built, server, gateway)


def test_another_adapter_needs_no_other_engine(stack: Stack) -> None:
    plan = load_plan(stack.folder / "conch.yaml")
    lora = plan.engine.lora.model_copy(update={"adapters": {"c": plan.engine.lora.adapters["c"]}, "max_loaded": 1})
    changed = plan.model_copy(update={"engine": plan.engine.model_copy(update={"lora": lora})})
    built = build(changed, Store(stack.folder / "store"))
    assert built.engine.reused and not built.repository.reused


def test_task_ids_choose_adapters_and_zero_chooses_none(stack: Stack) -> None:
    answers = [stack.ids(number) for number in (0, 1, 2, 3)]
    assert len({tuple(ids) for ids in answers}) == 4
    assert [stack.ids(number) for number in (0, 1, 2, 3)] == answers


def test_a_text_client_chooses_one_through_the_ensemble(stack: Stack) -> None:
    inputs = {"text_input": "Hello there", "max_tokens": 8, "end_id": -1, "exclude_input_in_output": True}
    texts = [ask(stack.triton.grpc_url, "ensemble", {**inputs, **more}).texts for more in ({}, {"lora_task_id": 1})]
    assert texts[0] != texts[1]


def test_an_unknown_task_id_is_refused(stack: Stack) -> None:
    reply = ask(stack.triton.grpc_url, "tensorrt_llm", tokens(PROMPT, 4, lora_task_id=9))
    assert reply.error is not None and "[NotFoundError param=lora_task_id" in reply.error


def test_the_gateway_lists_adapters_and_takes_their_names_as_models(stack: Stack) -> None:
    assert stack.models() == {"model": None, "a": "model", "b": "model", "c": "model"}
    assert stack.gateway.http.get("/v1/models/b").json()["parent"] == "model"
    answer = stack.gateway.ok("completions", model="b", **GREEDY)
    assert answer["model"] == "b"
    assert len({stack.text(name) for name in ("model", "a", "b", "c")}) == 4
    chat = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
    assert stack.gateway.ok("chat/completions", model="a", **chat)["model"] == "a"


@pytest.mark.parametrize("name", ["z", "", "A", "../a"])
def test_an_unknown_model_is_not_found(stack: Stack, name: str) -> None:
    status, answer = stack.gateway.post("completions", {"model": name, **GREEDY})
    assert status == 404 and answer["error"]["code"] == "model_not_found"


def test_a_request_cannot_name_a_path(stack: Stack) -> None:
    body = {"lora_name": "a", "lora_path": str(stack.folder / "b")}
    status, answer = stack.gateway.post("load_lora_adapter", body)
    assert status == 400 and answer["error"]["param"] == "lora_path"
    assert "the plan says where an adapter lies" in answer["error"]["message"]
    status, answer = stack.order("load", "z")
    assert status == 404 and answer["error"]["param"] == "lora_name"


def test_an_unloaded_adapter_is_gone_until_it_is_loaded_again(stack: Stack) -> None:
    before = stack.text("b")
    assert all(stack.order("load", name)[0] == 200 for name in "abc")
    assert metric(stack.triton.metrics_url, "conch_engine_adapter_slots", 'slot_type="max"') == 2
    assert stack.order("unload", "b")[0] == 200
    assert "b" not in stack.models() and stack.gateway.http.get("/v1/models/b").status_code == 404
    status, answer = stack.gateway.post("completions", {"model": "b", **GREEDY})
    assert status == 404 and answer["error"]["code"] == "model_not_found"
    assert stack.order("unload", "b")[0] == 404
    assert stack.order("load", "b")[0] == 200
    assert stack.text("b") == before


def test_metrics_tell_which_adapters_run(stack: Stack) -> None:
    with stream(
        stack.triton.grpc_url, "tensorrt_llm", tokens(PROMPT, 400, streaming=True, end_id=-1, lora_task_id=3)
    ) as c:
        c.next()
        text = stack.gateway.http.get("/metrics").text
    info = 'vllm:lora_requests_info{max_lora="2",model_name="model",running_lora_adapters="c",waiting_lora_adapters=""}'
    assert info in text
    assert stack.gateway.metric("conch:adapter_slots") == 2
    assert stack.gateway.metric("conch:adapter_loads_total") >= 1


def test_new_weights_under_an_old_name_change_new_answers_and_not_the_running_one(stack: Stack) -> None:
    url, more = stack.triton.grpc_url, {"streaming": True, "end_id": -1, "lora_task_id": 1}
    old, whole = stack.text("a"), ask(url, "tensorrt_llm", tokens(PROMPT, 400, **more)).ids
    with stream(url, "tensorrt_llm", tokens(PROMPT, 400, **more)) as running:
        first = running.next().as_numpy("output_ids").ravel().tolist()
        stack.write("a", seed=11)
        assert stack.order("load", "a")[0] == 200
        answer = stack.gateway.ok("completions", model="a", **GREEDY)
        assert text_of(answer) != old
        assert not (answer["usage"].get("prompt_tokens_details") or {}).get("cached_tokens")
        assert first + running.read().ids == whole


def test_weights_that_do_not_fit_are_refused_with_the_reason_and_the_old_ones_stay(stack: Stack) -> None:
    old = stack.text("c")
    write_adapter(stack.folder / "source", stack.folder / "c", seed=5, r=32, target_modules=TARGETS)
    status, answer = stack.order("load", "c")
    assert status == 400 and "has rank 32, above the engine's 16" in answer["error"]["message"]
    assert str(stack.folder) not in answer["error"]["message"]
    assert stack.text("c") == old
    stack.write("c", seed=3)
