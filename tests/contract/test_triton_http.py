"""The Triton contract over HTTP, spoken by curl and tritonclient to the sample model on the real engine."""

from __future__ import annotations

import json
import signal
import subprocess
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton

from conch.triton import TritonServer
from tests.contract.triton_calls import metric, wait_until_idle

TOKENS = {"input_ids": [1, 9690, 198, 2683], "input_lengths": 4, "request_output_len": 8}
TEXT = {"text_input": "Say hi", "max_tokens": 8}


@pytest.fixture(scope="module")
def url(stack_triton: TritonServer) -> str:
    return stack_triton.http_url


def curl(url: str, body: dict[str, Any] | None = None) -> tuple[int, str]:
    """Status and body, from the real curl."""
    data = [] if body is None else ["--data", json.dumps(body)]
    command = [
        "curl",
        "--silent",
        "--no-buffer",
        "--max-time",
        "60",
        "--write-out",
        "\n%{http_code}",
        *data,
        url,
    ]
    text, _, status = subprocess.run(command, capture_output=True, text=True, check=True).stdout.rpartition("\n")
    return int(status), text


def events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix("data:")) for line in text.splitlines() if line]


def test_generate_answers_once(url: str) -> None:
    status, text = curl(f"{url}/v2/models/tensorrt_llm/generate", TOKENS)
    answer = json.loads(text)
    assert status == 200
    assert answer["output_ids"][:4] == TOKENS["input_ids"]
    assert answer["conch_finish_reason"] in ("length", "stop")


def test_generate_stream_joins_to_what_generate_says(url: str) -> None:
    body = {**TEXT, "exclude_input_in_output": True, "end_id": -1}
    _, whole = curl(f"{url}/v2/models/ensemble/generate", body)
    status, text = curl(f"{url}/v2/models/ensemble/generate_stream", {**body, "stream": True})
    assert status == 200
    assert len(events(text)) == 8
    assert "".join(event["text_output"] for event in events(text)) == json.loads(whole)["text_output"]


def test_a_plain_infer_is_refused_with_the_reason_and_harms_nothing(url: str) -> None:
    inputs = [
        {"name": name, "shape": [1, len(data)], "datatype": "INT32", "data": data}
        for name, data in (("input_ids", [1, 2]), ("input_lengths", [2]), ("request_output_len", [4]))
    ]
    status, text = curl(f"{url}/v2/models/tensorrt_llm/infer", {"inputs": inputs})
    assert status >= 400
    assert "decoupled" in text
    assert curl(f"{url}/v2/models/tensorrt_llm/ready")[0] == 200


def test_generate_of_a_stream_is_refused_rather_than_cut_short(url: str) -> None:
    _, text = curl(f"{url}/v2/models/ensemble/generate", {**TEXT, "stream": True, "end_id": -1})
    assert "exactly 1 response" in json.loads(text)["error"]
    for _ in range(10):
        assert curl(f"{url}/v2/models/ensemble/generate", TEXT)[0] == 200


def test_a_refusal_is_a_status_with_the_tensors_name(url: str) -> None:
    status, text = curl(f"{url}/v2/models/tensorrt_llm/generate", {**TOKENS, "beam_width": 4})
    assert status >= 400
    assert "`beam_width`" in json.loads(text)["error"]
    status, text = curl(f"{url}/v2/models/ensemble/generate", {**TEXT, "beam_width": 4})
    assert status >= 400
    assert "`beam_width`" in json.loads(text)["error"]


def test_a_reader_that_leaves_a_stream_cancels_it(url: str, stack_triton: TritonServer) -> None:
    cancelled = metric(stack_triton.metrics_url, "conch_engine_requests_total", 'finish_reason="cancelled"')
    body = json.dumps({**TOKENS, "request_output_len": 1000, "streaming": True, "end_id": -1})
    command = ["curl", "-sN", "--data", body, f"{url}/v2/models/tensorrt_llm/generate_stream"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as reader:
        assert reader.stdout is not None
        reader.stdout.readline()
        reader.send_signal(signal.SIGKILL)
    wait_until_idle(stack_triton.metrics_url)
    now = metric(stack_triton.metrics_url, "conch_engine_requests_total", 'finish_reason="cancelled"')
    assert now == cancelled + 1


def test_metrics_have_upstreams_names_and_count(url: str, stack_triton: TritonServer) -> None:
    before = metric(stack_triton.metrics_url, "conch_engine_generated_tokens_total", "tensorrt_llm")
    curl(f"{url}/v2/models/tensorrt_llm/generate", {**TOKENS, "end_id": -1})
    wait_until_idle(stack_triton.metrics_url)
    after = metric(stack_triton.metrics_url, "conch_engine_generated_tokens_total", "tensorrt_llm")
    assert after == before + 8
    for kind in ("max", "free", "used", "tokens_per", "fraction", "cached"):
        metric(stack_triton.metrics_url, "nv_trt_llm_kv_cache_block_metrics", f'kv_cache_block_type="{kind}"')
    for kind in ("active", "max", "scheduled", "context", "waiting"):
        metric(stack_triton.metrics_url, "nv_trt_llm_request_metrics", f'request_type="{kind}"')


def test_tritonclient_reads_health_metadata_and_statistics(url: str) -> None:
    client = triton.InferenceServerClient(url.removeprefix("http://"))
    assert client.is_server_live() and client.is_server_ready()
    for model in ("tensorrt_llm", "preprocessing", "postprocessing", "ensemble"):
        assert client.is_model_ready(model)
    names = {tensor["name"] for tensor in client.get_model_metadata("tensorrt_llm")["inputs"]}
    assert {"input_ids", "stop_words_list", "conch_min_p"} <= names
    assert client.get_inference_statistics("tensorrt_llm")["model_stats"]


def test_preprocessing_gives_every_form_of_a_word(url: str) -> None:
    client = triton.InferenceServerClient(url.removeprefix("http://"))

    def texts(name: str, values: list[str]) -> triton.InferInput:
        made = triton.InferInput(name, [1, len(values)], "BYTES")
        made.set_data_from_numpy(np.array([[value.encode() for value in values]], np.object_))
        return made

    count = triton.InferInput("REQUEST_OUTPUT_LEN", [1, 1], "INT32")
    count.set_data_from_numpy(np.array([[4]], np.int32))
    inputs = [texts("QUERY", ["Say hi"]), texts("STOP_WORDS_DICT", ["hello", "a,b"]), count]
    result = client.infer("preprocessing", inputs)
    ids, ends = result.as_numpy("STOP_WORDS_IDS")[0].tolist()
    words = [tuple(ids[start:end]) for start, end in zip([0, *ends], [end for end in ends if end > 0], strict=False)]
    assert len(words) == len(set(words)) == 4
    whole = client.infer(
        "postprocessing", [_int32("TOKENS_BATCH", [[words[1]]]), _int32("SEQUENCE_LENGTH", [[len(words[1])]])]
    )
    assert whole.as_numpy("OUTPUT").ravel()[0] == b" hello"


def _int32(name: str, values: Any) -> triton.InferInput:
    array = np.array(values, np.int32)
    made = triton.InferInput(name, list(array.shape), "INT32")
    made.set_data_from_numpy(array)
    return made
