"""`conch.Client` and `conch.AsyncClient` against the running Triton."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from conch import AsyncClient, Client
from conch.commands.bench import bench
from conch.commands.chat import chat
from conch.commands.generate import generate
from conch_build.errors import (
    DeadlineError,
    RequestError,
    ServiceError,
    UnavailableError,
)
from tests.contract.conftest import Gateway, eventually

if TYPE_CHECKING:
    pass

IDS = [1, 33, 28, 216, 34, 28]
GREEDY = {"max_tokens": 12, "temperature": 0.0}


def test_a_stream_adds_up_to_the_whole_answer(url: str) -> None:
    with Client(url) as client:
        whole = client.generate(IDS, **GREEDY, log_probs=True, top_log_probs=3)
        deltas = list(client.stream(IDS, **GREEDY, log_probs=True, top_log_probs=3))
    assert tuple(token for delta in deltas for token in delta.tokens) == whole.tokens
    assert [delta.finish_reason for delta in deltas] == [None] * (len(deltas) - 1) + [whole.finish_reason]
    assert whole.log_probs is not None and whole.top is not None
    assert len(whole.tokens) == len(whole.log_probs) == len(whole.top)
    for token, log_prob, candidates in zip(whole.tokens, whole.log_probs, whole.top, strict=True):
        assert len(candidates) == 3
        assert candidates[0] == (token, pytest.approx(log_prob, abs=1e-3))


def test_text_in_text_out(url: str) -> None:
    with Client(url) as client:
        whole = client.generate("1, 2, 3, 4, 5,", **GREEDY)
        deltas = list(client.stream("1, 2, 3, 4, 5,", **GREEDY))
    assert whole.text is not None and whole.text.startswith(" 6, 7")
    assert "".join(delta.text or "" for delta in deltas) == whole.text
    assert whole.finish_reason == "length"


async def test_async_gives_the_same(url: str) -> None:
    with Client(url) as client:
        expected = client.generate(IDS, **GREEDY)
    async with AsyncClient(url) as client_:
        whole = await client_.generate(IDS, **GREEDY)
        assert whole.tokens == expected.tokens
        assert tuple([t async for delta in client_.stream(IDS, **GREEDY) for t in delta.tokens]) == expected.tokens


def test_a_refusal_keeps_its_class_and_its_field(url: str) -> None:
    with Client(url) as client:
        with pytest.raises(RequestError) as caught:
            client.generate([28] * 10, max_tokens=10**6)
        assert caught.value.code == "context_length_exceeded"
        with pytest.raises(RequestError, match="whole numbers"):
            client.generate([2**40])
        assert client.generate(IDS, max_tokens=1)


def test_no_server_is_said_plainly() -> None:
    with Client("127.0.0.1:9") as client, pytest.raises(UnavailableError, match=r"127\.0\.0\.1:9"):
        client.generate(IDS)


def test_a_timeout_ends_the_request(url: str, gateway: Gateway) -> None:
    with Client(url) as client, pytest.raises(DeadlineError):
        client.generate(IDS, max_tokens=1500, end_ids=(), timeout=0.5)
    assert eventually(lambda: gateway.metric("vllm:num_requests_running") == 0, seconds=5)


def test_leaving_the_iterator_cancels(url: str, gateway: Gateway) -> None:
    with Client(url) as client:
        for _ in client.stream(IDS, max_tokens=1500, end_ids=()):
            break
        assert eventually(lambda: gateway.metric("conch:kv_blocks_used") == 0, seconds=5)


async def test_cancelling_the_task_cancels(url: str, gateway: Gateway) -> None:
    async with AsyncClient(url) as client:

        async def read() -> None:
            async for _ in client.stream(IDS, max_tokens=1500, end_ids=()):
                pass

        task = asyncio.ensure_future(read())
        await asyncio.sleep(0.5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        ended = await asyncio.to_thread(lambda: eventually(lambda: gateway.metric("conch:kv_blocks_used") == 0))
        assert ended


def test_importing_conch_is_fast() -> None:
    code = "import sys, conch; assert 'grpc' not in sys.modules; assert 'numpy' not in sys.modules"
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    assert time.perf_counter() - started < 2


def test_the_commands_speak_to_the_stack(url: str, gateway: Gateway) -> None:
    runner = CliRunner()
    result = runner.invoke(generate, ["1, 2, 3, 4, 5,", "--url", url, "--max-tokens", "6", "--json"])
    assert json.loads(result.output)["text"] == " 6, 7,"
    result = runner.invoke(generate, ["1, 2, 3, 4, 5,", "--url", url, "--max-tokens", "6", "--stream"])
    assert result.output == " 6, 7,\n"
    result = runner.invoke(generate, ["--ids", "1,33,28", "--url", url, "--max-tokens", "3"])
    assert len(result.output.split()) == 3
    result = runner.invoke(generate, ["a", "--ids", "1", "--url", url])
    assert result.exit_code == 2
    result = runner.invoke(chat, ["-m", "Hello", "--url", gateway.url, "--max-tokens", "5", "--json"])
    assert json.loads(result.output)["usage"]["prompt_tokens"] == 31
    result = runner.invoke(chat, ["--url", gateway.url, "--max-tokens", "5"], input="Hello\nGo on\n")
    assert result.output.count("> ") == 3
    result = runner.invoke(chat, ["-m", "x", "--url", "http://127.0.0.1:9"])
    assert result.exit_code == 5
    result = runner.invoke(bench, ["--url", gateway.url, "--model", "foo"])
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ") and "foo" in result.stderr
    assert not any(inner in result.stderr for inner in ("{", "status", "content-type"))


@pytest.mark.parametrize("address", ["127.0.0.1:8080", "nonsense", "ftp://x", "http://[::1", "http://a:b", ""])
def test_an_address_that_is_no_gateways_is_refused_with_the_right_form(address: str) -> None:
    for command in (chat, bench):
        result = CliRunner().invoke(command, [*(["-m", "x"] if command is chat else []), "--url", address])
        assert result.exit_code == 2
        assert "Write it as http://127.0.0.1:8080." in result.stderr


@pytest.mark.parametrize("address", ["http://127.0.0.1:8001", "127.0.0.1", "a:b", "127.0.0.1:8001/", ""])
def test_an_address_that_is_no_grpc_port_is_refused_with_the_right_form(address: str) -> None:
    result = CliRunner().invoke(generate, ["x", "--url", address])
    assert result.exit_code == 2
    assert "Write it as 127.0.0.1:8001." in result.stderr


def test_a_closed_port_is_told_without_the_words_of_grpc() -> None:
    result = CliRunner().invoke(generate, ["x", "--url", "127.0.0.1:9"])
    fix = "Is the server running, and is this its gRPC port?"
    assert (result.exit_code, result.stderr) == (5, f"error: 127.0.0.1:9: no connection to Triton. {fix}\n")


def test_what_no_tensor_can_hold_is_refused_before_it_is_sent() -> None:
    with Client("127.0.0.1:1") as client:
        for prompt, sampling in (
            ("\ud83d", {}),
            ("a", {"stop_words": ["\ude00"]}),
            ([2**31], {}),
            ([1], {"seed": -1}),
            ([1], {"bad_words": [[]]}),
        ):
            with pytest.raises(RequestError):
                client.generate(prompt, **sampling)


def test_errors_of_a_stream_that_breaks_off() -> None:
    from conch.client.reading import Reader

    with pytest.raises(ServiceError, match="before its final response"):
        Reader().end()
