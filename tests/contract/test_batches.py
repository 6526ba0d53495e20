"""Batches on the real stack, by the official SDK: from a file of requests to a file of answers, through every fault."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import openai
import pytest

from tests.conftest import SAMPLE_PLAN
from tests.contract.conftest import Gateway, eventually, running_gateway
from tests.gateway.apps import new_key

if TYPE_CHECKING:
    from conch.triton import TritonServer
    from conch_build.pipeline import BuildResult

Start = Callable[..., AbstractContextManager[Gateway]]
CHAT = "/v1/chat/completions"
ENDED = ("completed", "failed", "expired", "cancelled")


@pytest.fixture
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of gateways that share nothing with those of other tests."""
    monkeypatch.setenv("CONCH_HOME", str(tmp_path))
    return tmp_path / "gateway"


@pytest.fixture
def start(stack_triton: TritonServer, sample_build: BuildResult, own_home: Path, tmp_path: Path) -> Start:
    """A gateway whose plan has these lines under `serving.gateway`."""

    def started(*lines: str) -> AbstractContextManager[Gateway]:
        plan = tmp_path / "conch.yaml"
        plan.write_text("\n    ".join([f"{SAMPLE_PLAN}serving:\n  gateway:\n    port: 0", *lines]), encoding="utf-8")
        return running_gateway(stack_triton, sample_build.engine.path, "--plan", str(plan))

    return started


def client(gateway: Gateway, key: str = "none") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=key, max_retries=0)


def line(custom_id: str, url: str = CHAT, **body: Any) -> dict[str, Any]:
    defaults: dict[str, dict[str, Any]] = {
        CHAT: {"messages": [{"role": "user", "content": f"Say {custom_id}"}], "max_tokens": 4},
        "/v1/completions": {"prompt": f"{custom_id},", "max_tokens": 4},
        "/v1/responses": {"input": f"Say {custom_id}", "max_output_tokens": 4},
    }
    body = {"model": "smollm2", **defaults[url], "temperature": 0, **body}
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


def created(sdk: openai.OpenAI, lines: list[dict[str, Any]], window: Any = "24h", url: Any = CHAT, **more: Any) -> Any:
    content = "".join(json.dumps(line) + "\n" for line in lines).encode()
    file = sdk.files.create(file=("requests.jsonl", content), purpose="batch")
    return sdk.batches.create(input_file_id=file.id, endpoint=url, completion_window=window, **more)


def ended(sdk: openai.OpenAI, batch_id: str, seconds: float = 120) -> Any:
    deadline = time.monotonic() + seconds
    while (batch := sdk.batches.retrieve(batch_id)).status not in ENDED:
        assert time.monotonic() < deadline, batch
        time.sleep(0.1)
    return batch


def rows(sdk: openai.OpenAI, file_id: str | None) -> dict[str, Any]:
    """By custom id, each of which must be there once."""
    if file_id is None:
        return {}
    read = [json.loads(text) for text in sdk.files.content(file_id).text.splitlines()]
    found = {row["custom_id"]: row for row in read}
    assert len(found) == len(read)
    return found


def counts(batch: Any) -> tuple[int, int, int]:
    told = batch.request_counts
    return told.total, told.completed, told.failed


@pytest.fixture(scope="module")
def sdk(
    stack_triton: TritonServer, sample_build: BuildResult, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[openai.OpenAI]:
    """Of one gateway for the tests that need nothing special of it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONCH_HOME", str(tmp_path_factory.mktemp("home")))
        with running_gateway(stack_triton, sample_build.engine.path) as gateway:
            yield client(gateway)


@pytest.mark.conforms("BATCH-1")
@pytest.mark.parametrize("url", [CHAT, "/v1/completions", "/v1/responses"])
def test_the_answers_of_a_batch_are_those_of_live_requests(sdk: openai.OpenAI, url: str) -> None:
    lines = [line(f"{number}", url) for number in range(5)]
    batch = created(sdk, lines, url=url, metadata={"job": "nightly"})
    assert (batch.status, batch.metadata) == ("validating", {"job": "nightly"})
    assert batch.expires_at - batch.created_at == 24 * 3600
    batch = ended(sdk, batch.id)
    assert (batch.status, batch.model, counts(batch)) == ("completed", "smollm2", (5, 5, 0))
    assert batch.error_file_id is None and batch.errors is None
    assert batch.in_progress_at <= batch.finalizing_at <= batch.completed_at
    answers = rows(sdk, batch.output_file_id)
    assert answers.keys() == {str(number) for number in range(5)}
    total = 0
    for request in lines:
        response = answers[request["custom_id"]]["response"]
        assert response["status_code"] == 200 and response["request_id"]
        live = sdk.post(url.removeprefix("/v1"), body=request["body"], cast_to=object)
        assert told(response["body"]) == told(live)
        total += response["body"]["usage"]["total_tokens"]
    assert batch.usage.total_tokens == total > 0
    assert sdk.files.retrieve(batch.output_file_id).purpose == "batch_output"


def told(body: Any) -> Any:
    """What an answer says."""
    if "output" in body:
        return body["output"][0]["content"][0]["text"]
    choice = body["choices"][0]
    return choice["message"]["content"] if "message" in choice else choice["text"]


@pytest.mark.conforms("BATCH-2")
def test_a_file_with_bad_lines_fails_with_their_numbers_and_nothing_runs(sdk: openai.OpenAI) -> None:
    batch = ended(sdk, created(sdk, [line("a"), line("a"), line("b", model="nope"), line("c")]).id)
    assert (batch.status, counts(batch)) == ("failed", (4, 0, 0))
    assert [(error.line, error.param) for error in batch.errors.data] == [(2, "custom_id"), (3, "body.model")]
    assert batch.output_file_id is None and batch.error_file_id is None
    assert ended(sdk, created(sdk, []).id).errors.data[0].code == "empty_file"


@pytest.mark.conforms("BATCH-2")
def test_the_good_lines_of_a_file_that_has_failed_ask_no_engine(start: Start) -> None:
    with start("batches: {running: 8}") as gateway:
        sdk = client(gateway)
        before = gateway.metric("vllm:prompt_tokens_total")
        assert ended(sdk, created(sdk, [line("a"), line("b"), line("c", model="nope")]).id).status == "failed"
        time.sleep(1.5)
        assert gateway.metric("vllm:prompt_tokens_total") == before
        assert ended(sdk, created(sdk, [line("a")]).id).status == "completed"
        assert gateway.metric("vllm:prompt_tokens_total") > before


@pytest.mark.conforms("BATCH-2")
def test_a_file_with_too_many_lines_fails(start: Start) -> None:
    with start("batches: {lines: 3}") as gateway:
        sdk = client(gateway)
        batch = ended(sdk, created(sdk, [line(f"{number}") for number in range(4)]).id)
        assert [error.code for error in batch.errors.data] == ["too_many_requests"]
        assert ended(sdk, created(sdk, [line(f"{number}") for number in range(3)]).id).status == "completed"


@pytest.mark.conforms("BATCH-3")
def test_a_line_that_fails_has_its_row_in_the_error_file(sdk: openai.OpenAI) -> None:
    long = line("long", messages=[{"role": "user", "content": "one two three " * 3000}])
    batch = ended(sdk, created(sdk, [line("a"), long, line("b")]).id)
    assert (batch.status, counts(batch)) == ("completed", (3, 2, 1))
    assert rows(sdk, batch.output_file_id).keys() == {"a", "b"}
    failed = rows(sdk, batch.error_file_id)["long"]
    assert failed["response"]["status_code"] == 400
    assert failed["response"]["body"]["error"]["code"] == "context_length_exceeded"


@pytest.mark.slow
@pytest.mark.conforms("BATCH-4")
@pytest.mark.parametrize("kills", [[signal.SIGKILL, signal.SIGKILL], [signal.SIGTERM]])
def test_a_batch_goes_on_after_its_gateway_was_ended_and_no_line_is_lost_or_doubled(
    start: Start, kills: list[signal.Signals]
) -> None:
    lines = [line(f"{number}") for number in range(160)]
    batch_id, done = "", 0
    for kill in kills:
        with start("batches: {running: 8}") as gateway:
            sdk = client(gateway)
            batch_id = batch_id or created(sdk, lines).id
            before = done + 20
            assert eventually(lambda: counts(sdk.batches.retrieve(batch_id))[1] >= before, 60)  # noqa: B023
            os.kill(gateway.process.pid, kill)
            gateway.process.wait(60)
    with start() as gateway:
        sdk = client(gateway)
        done = counts(sdk.batches.retrieve(batch_id))[1]
        assert 20 <= done < 160
        batch = ended(sdk, batch_id)
        assert (batch.status, counts(batch)) == ("completed", (160, 160, 0))
        assert rows(sdk, batch.output_file_id).keys() == {str(number) for number in range(160)}


@pytest.mark.slow
@pytest.mark.conforms("BATCH-4")
def test_of_two_gateways_one_runs_the_batches_and_the_other_goes_on_when_it_dies(start: Start) -> None:
    with start("batches: {running: 4}") as first, start("batches: {running: 4}") as second:
        sdk = client(second)
        batch_id = created(sdk, [line(f"{number}") for number in range(120)]).id
        assert eventually(lambda: counts(sdk.batches.retrieve(batch_id))[1] >= 20, 60)
        os.kill(first.process.pid, signal.SIGKILL)
        batch = ended(sdk, batch_id)
        assert (batch.status, counts(batch)) == ("completed", (120, 120, 0))
        assert rows(sdk, batch.output_file_id).keys() == {str(number) for number in range(120)}


@pytest.mark.slow
@pytest.mark.conforms("BATCH-5")
def test_a_cancelled_batch_gives_what_was_answered(start: Start) -> None:
    with start("batches: {running: 4}") as gateway:
        sdk = client(gateway)
        batch = created(sdk, [line(f"{number}", max_tokens=30, ignore_eos=True) for number in range(300)])
        assert eventually(lambda: counts(sdk.batches.retrieve(batch.id))[1] > 0, 60)
        assert sdk.batches.cancel(batch.id).status == "cancelling"
        batch = ended(sdk, batch.id)
        total, completed, failed = counts(batch)
        assert (batch.status, total) == ("cancelled", completed + failed)
        assert completed > 0 and failed > 0
        answered, left = rows(sdk, batch.output_file_id), rows(sdk, batch.error_file_id)
        assert (len(answered), len(left)) == (completed, failed) and not answered.keys() & left.keys()
        assert {row["error"]["code"] for row in left.values()} == {"batch_cancelled"}
        with pytest.raises(openai.BadRequestError):
            sdk.batches.cancel(batch.id)


@pytest.mark.slow
@pytest.mark.conforms("BATCH-5")
def test_a_batch_that_is_not_done_in_its_window_expires_with_a_row_for_each_line(start: Start) -> None:
    with start("batches: {running: 2}") as gateway:
        sdk = client(gateway)
        lines = [line(f"{number}", max_tokens=40, ignore_eos=True) for number in range(300)]
        batch = ended(sdk, created(sdk, lines, window="3s").id)
        total, completed, failed = counts(batch)
        assert batch.status == "expired" and completed > 0 and total == completed + failed == 300
        left = rows(sdk, batch.error_file_id)
        assert {row["error"]["code"] for row in left.values()} == {"batch_expired"}
        assert not left.keys() & rows(sdk, batch.output_file_id).keys()


@pytest.mark.conforms("BATCH-6")
def test_live_requests_go_before_a_batch(start: Start) -> None:
    with start("queue: {running: 2}", "batches: {running: 8}") as gateway:
        sdk = client(gateway)
        lines = [line(f"{number}", max_tokens=60, ignore_eos=True) for number in range(100)]
        batch = created(sdk, lines)
        assert eventually(lambda: gateway.metric("conch:queue_requests") >= 4, 30)
        answer = sdk.chat.completions.create(
            model="smollm2", messages=[{"role": "user", "content": "Hello"}], max_tokens=4
        )
        assert answer.choices[0].message.content
        # It waited for a place, and not for the six lines that waited before it.
        assert gateway.metric("conch:queue_requests") >= 4
        sdk.batches.cancel(batch.id)
        tiers = {row["response"]["body"]["service_tier"] for row in rows_of_ended(sdk, batch.id)}
        assert tiers == {"flex"}


def rows_of_ended(sdk: openai.OpenAI, batch_id: str) -> list[Any]:
    return list(rows(sdk, ended(sdk, batch_id).output_file_id).values())


@pytest.mark.slow
@pytest.mark.conforms("BATCH-7")
def test_a_batch_may_do_what_its_key_may_and_is_found_by_no_other(start: Start, own_home: Path) -> None:
    ada, bob = new_key(own_home, "ada", models=("other",)), new_key(own_home, "bob")
    with start() as gateway:
        hers, his = client(gateway, ada), client(gateway, bob)
        batch = ended(hers, created(hers, [line("a")]).id)
        assert (batch.status, counts(batch)) == ("completed", (1, 0, 1))
        assert rows(hers, batch.error_file_id)["a"]["response"]["status_code"] == 403
        with pytest.raises(openai.NotFoundError):
            his.batches.retrieve(batch.id)
        with pytest.raises(openai.NotFoundError):
            his.batches.cancel(batch.id)
        with pytest.raises(openai.NotFoundError):
            his.files.content(batch.error_file_id)
        assert list(his.batches.list()) == []
        assert counts(ended(his, created(his, [line("a")]).id)) == (1, 1, 0)


@pytest.mark.conforms("BATCH-1")
def test_batches_are_listed_page_by_page(sdk: openai.OpenAI) -> None:
    ids = [created(sdk, [line("a")]).id for _ in range(3)]
    everything = [batch.id for batch in sdk.batches.list(limit=2)]  # the SDK goes on to the next page
    assert everything[:3] == ids[::-1]
    page = sdk.batches.list(limit=2)
    assert (len(page.data), page.has_more) == (2, True)


@pytest.mark.conforms("BATCH-8")
def test_what_a_batch_cannot_be_made_of_is_refused(start: Start) -> None:
    with start("batches: {unfinished: 1, running: 1}") as gateway:
        sdk = client(gateway)
        file = sdk.files.create(file=("a.jsonl", json.dumps(line("a")).encode()), purpose="batch").id
        for given, param in (
            ({"endpoint": "/v1/embeddings"}, "endpoint"),
            ({"completion_window": "soon"}, "completion_window"),
            ({"completion_window": "9999h"}, "completion_window"),
            ({"metadata": {"x": "y" * 513}}, "metadata.x"),
            ({"colour": "red"}, "colour"),
            ({"input_file_id": None}, "input_file_id"),
        ):
            body = {"input_file_id": file, "endpoint": CHAT, "completion_window": "24h", **given}
            assert gateway.http.post("/v1/batches", json=body).json()["error"]["param"] == param
        with pytest.raises(openai.NotFoundError):
            sdk.batches.create(input_file_id="file-none", endpoint=CHAT, completion_window="24h")
        batch = created(sdk, [line(f"{number}", max_tokens=30, ignore_eos=True) for number in range(50)])
        with pytest.raises(openai.BadRequestError) as caught:
            sdk.files.delete(batch.input_file_id)
        assert caught.value.code == "file_in_use"
        with pytest.raises(openai.RateLimitError):
            created(sdk, [line("a")])
        sdk.batches.cancel(batch.id)
        output = ended(sdk, batch.id).output_file_id
        if output is not None:
            with pytest.raises(openai.BadRequestError):
                sdk.batches.create(input_file_id=output, endpoint=CHAT, completion_window="24h")
