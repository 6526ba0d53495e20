"""The LLM API's model inside a real Triton, with a package in place of TensorRT-LLM that counts."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator

import numpy as np
import pytest

from conch.triton import TritonServer
from conch_build.pipeline import build
from conch_build.plan import parse_plan
from conch_build.store import Store
from tests.build.tiny import write_tiny
from tests.build.tiny_adapter import write_adapter
from tests.contract.triton_calls import ask, metric, stream, tokens
from tests.serving.test_llmapi_engine import STANDIN

_PLAN = """
name: counting
model: {{checkpoint: {checkpoint}}}
target: {{gpu: h100}}
engine: {{backend: pytorch, max_seq_len: 512, lora: {{adapters: {{first: {adapter}, second: {adapter}}}}}}}
serving: {{triton: {{layout: tokens}}}}
"""


@pytest.fixture(scope="module")
def triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    """What a plan for GPUs is built into, which takes none, served over the package that counts."""
    folder = tmp_path_factory.mktemp("llmapi")
    tiny = write_tiny(folder / "tiny", dtype="bfloat16")
    plan = parse_plan(_PLAN.format(checkpoint=tiny, adapter=write_adapter(tiny, folder / "adapter")))
    repository = folder / "repository"
    shutil.copytree(build(plan, Store(folder / "store")).repository.path, repository)
    code = repository / "tensorrt_llm" / "1" / "model.py"
    code.write_text(f"import sys\n\nsys.path.insert(0, {str(STANDIN)!r})\n{code.read_text(encoding='utf-8')}")
    ports = {"http_port": 0, "grpc_port": 0, "metrics_port": 0}
    server = TritonServer(repository, **ports, log_path=folder / "triton.log", run_folder=folder / "run")
    server.start()
    yield server
    server.stop(0)


@pytest.fixture(scope="module")
def url(triton: TritonServer) -> str:
    return triton.grpc_url


def test_a_stream_carries_a_response_a_token_and_its_end(url: str) -> None:
    reply = ask(url, "tensorrt_llm", tokens([10], 4, streaming=True))
    assert reply.error is None
    assert [response.as_numpy("output_ids").ravel().tolist() for response in reply.responses] == [
        [11],
        [12],
        [13],
        [14],
    ]
    assert reply.finish_reason == "length"


def test_an_answer_in_one_piece_has_the_prompt_unless_it_is_left_out(url: str) -> None:
    assert ask(url, "tensorrt_llm", tokens([10], 3)).ids == [10, 11, 12, 13]
    assert ask(url, "tensorrt_llm", tokens([10], 3, exclude_input_in_output=True)).ids == [11, 12, 13]


def test_end_ids_and_stop_words_of_upstreams_tensors_end_an_answer(url: str) -> None:
    reply = ask(url, "tensorrt_llm", tokens([10], 50, streaming=True, end_id=14))
    assert (reply.ids, reply.finish_reason) == ([11, 12, 13], "stop")
    words = np.array([[[12, 13], [2, -1]]], np.int32)
    reply = ask(url, "tensorrt_llm", tokens([10], 50, streaming=True, stop_words_list=words))
    assert (reply.ids, reply.finish_reason) == ([11, 12, 13], "stop")


def test_log_probabilities_and_perf_metrics_have_upstreams_tensors(url: str) -> None:
    more = {"return_log_probs": True, "conch_top_log_probs": 2, "return_perf_metrics": True}
    reply = ask(url, "tensorrt_llm", tokens([10], 2, exclude_input_in_output=True, **more))
    scores, top = reply.array("output_log_probs"), reply.array("conch_top_ids")
    assert scores is not None and scores.ravel().tolist() == [-0.5, -0.5]
    assert top is not None and top.tolist() == [[[11, 12], [12, 13]]]
    for name, expected in (
        ("kv_cache_reused_blocks", 1),
        ("total_draft_tokens", 8),
        ("first_token_time_ns", 3 * 10**9),
    ):
        value = reply.array(name)
        assert value is not None and value.ravel().tolist() == [expected]


def test_an_adapter_is_chosen_by_its_id(url: str) -> None:
    assert ask(url, "tensorrt_llm", tokens([10], 3, streaming=True, lora_task_id=2)).ids == [12, 14, 16]
    error = ask(url, "tensorrt_llm", tokens([10], 3, lora_task_id=3)).error
    assert error is not None and error.startswith("[NotFoundError param=lora_task_id")


@pytest.mark.parametrize(
    ("name", "value"),
    [("seed", 3), ("repetition_penalty", 1.5), ("beam_width", 2), ("return_context_logits", True)],
)
def test_what_it_cannot_do_is_refused_by_the_name_of_its_tensor(url: str, name: str, value: object) -> None:
    error = ask(url, "tensorrt_llm", tokens([10], 3, runtime_top_p=0.5, **{name: value})).error
    assert error is not None and error.startswith(f"[UnsupportedError param={name}")


def test_a_caller_who_leaves_ends_the_request(triton: TritonServer, url: str) -> None:
    with stream(url, "tensorrt_llm", tokens([10], 500, streaming=True, end_id=-1)) as opened:
        opened.next()
    deadline = time.monotonic() + 10
    while not metric(triton.metrics_url, "conch_engine_requests_total", 'finish_reason="cancelled"'):
        assert time.monotonic() < deadline, "the request is still there"
        time.sleep(0.05)


def test_a_stop_request_of_the_same_id_ends_the_request(url: str) -> None:
    with stream(url, "tensorrt_llm", tokens([10], 500, streaming=True, end_id=-1), request_id="mine") as opened:
        opened.next()
        ask(url, "tensorrt_llm", tokens([10], 1, stop=True), request_id="mine")
        reply = opened.read()
    assert reply.finish_reason == "cancelled"
