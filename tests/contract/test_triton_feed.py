"""Feeds: many streams' tokens in one response a step, by raw tensors and by the client that uses them."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import numpy as np
import pytest

from conch import AsyncClient, Client
from conch_build.errors import DeadlineError
from tests.contract.conftest import Gateway, eventually
from tests.contract.triton_calls import Reply, Stream, ask, stream, tokens

pytestmark = pytest.mark.usefixtures("idle_afterwards")

PROMPT = [1, 33, 28, 216, 34, 28]
FEED_TENSORS = ["conch_feed_streams", "conch_feed_counts", "output_ids"]
FED_TENSORS = ["output_ids", "conch_finish_reason", "num_output_tokens"]
ENDLESS = {"max_tokens": 1500, "end_ids": ()}


def opened(url: str, name: str) -> Any:
    """A stream that has opened a feed of that name."""
    inputs = {"input_lengths": np.int32(1), "request_output_len": np.int32(1), "conch_feed": name}
    return stream(url, "tensorrt_llm", inputs, outputs=FEED_TENSORS, request_id=name)


def fed(name: str, number: int, count: int, **more: Any) -> dict[str, Any]:
    extra = {"streaming": True, "exclude_input_in_output": True, "return_num_output_tokens": np.bool_(True)}
    feed = {"conch_feed": name, "conch_feed_stream": np.int32(number)}
    return tokens(PROMPT, count, **{**extra, **feed, **more})


def read_until(feed: Stream, found: dict[int, list[int]], done: Any) -> int:
    """Read a feed's responses into `found` until `done()`; how many they were."""
    messages = 0
    while not done():
        result = feed.next()
        messages += 1
        ids = iter(result.as_numpy("output_ids").ravel().tolist())
        streams, counts = (result.as_numpy(name).ravel() for name in ("conch_feed_streams", "conch_feed_counts"))
        for number, count in zip(streams, counts, strict=True):
            found.setdefault(int(number), []).extend(next(ids) for _ in range(count))
        assert next(ids, None) is None
    return messages


def plain(url: str, count: int, **more: Any) -> list[int]:
    return ask(url, "tensorrt_llm", tokens(PROMPT, count, exclude_input_in_output=True, **more)).ids


def test_a_fed_stream_has_its_tokens_in_the_feed_and_the_rest_in_its_own_last_response(url: str) -> None:
    wanted = plain(url, 20, end_id=-1)
    with opened(url, "one") as feed:
        time.sleep(0.2)
        reply = ask(url, "tensorrt_llm", fed("one", 7, 20, end_id=-1), outputs=FED_TENSORS)
        assert len(reply.responses) == 1 and reply.finish_reason == "length"
        found: dict[int, list[int]] = {}
        total = int(reply.array("num_output_tokens").ravel()[0])  # type: ignore[union-attr]
        read_until(feed, found, lambda: len(found.get(7, ())) + len(reply.ids) == total)
    assert found[7] + reply.ids == wanted and total == 20


def test_streams_of_one_step_share_a_response(url: str) -> None:
    count, each = 8, 40
    with opened(url, "many") as feed:
        time.sleep(0.2)
        streams = [
            Stream(url, "tensorrt_llm", fed("many", n, each, end_id=-1), outputs=FED_TENSORS) for n in range(count)
        ]
        replies: list[Reply] = [each_stream.read() for each_stream in streams]
        found: dict[int, list[int]] = {}
        missing = each - len(replies[0].ids)
        messages = read_until(feed, found, lambda: all(len(found.get(n, ())) == missing for n in range(count)))
        for each_stream in streams:
            each_stream.close()
    wanted = plain(url, each, end_id=-1)
    assert all(found[n] + reply.ids == wanted for n, reply in enumerate(replies))
    assert messages < count * missing / 2


def test_a_stream_of_a_feed_that_is_not_open_answers_on_its_own(url: str) -> None:
    reply = ask(url, "tensorrt_llm", fed("nobody", 1, 5, end_id=-1), outputs=FED_TENSORS)
    assert len(reply.responses) == 5 and reply.ids == plain(url, 5, end_id=-1)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"return_log_probs": True}, "a feed carries tokens"),
        ({"conch_top_log_probs": 3}, "a feed carries tokens"),
        ({"conch_return_prompt_log_probs": True}, "a feed carries tokens"),
        ({"num_return_sequences": 2, "runtime_top_p": 1.0}, "a feed carries tokens"),
        ({"conch_feed": ""}, "`conch_feed` is empty"),
    ],
)
def test_what_a_feed_cannot_carry_is_refused_by_name(url: str, more: dict[str, Any], words: str) -> None:
    reply = ask(url, "tensorrt_llm", fed("any", 1, 5, **more), outputs=FED_TENSORS)
    assert reply.error is not None and words in reply.error


def test_a_number_without_a_feed_and_a_feed_opened_twice_are_refused(url: str) -> None:
    reply = ask(url, "tensorrt_llm", tokens(PROMPT, 5, conch_feed_stream=np.int32(1)))
    assert reply.error is not None and "`conch_feed_stream` without `conch_feed`" in reply.error
    with opened(url, "twice"):
        time.sleep(0.2)
        with opened(url, "twice") as second:
            assert "open already" in str(second.read().error)


def test_who_leaves_a_feed_gives_up_its_streams(url: str) -> None:
    with opened(url, "left"):
        time.sleep(0.2)
        running = Stream(url, "tensorrt_llm", fed("left", 1, 1500, end_id=-1), outputs=FED_TENSORS)
        time.sleep(0.3)
    assert running.read().finish_reason == "cancelled"
    running.close()


async def test_a_client_with_a_feed_gives_the_same_answers(url: str) -> None:
    options = [{"max_tokens": 1 + 7 * n, "temperature": 1.0, "top_p": 1.0, "seed": n, "end_ids": ()} for n in range(12)]
    with Client(url) as client:
        wanted = [client.generate(PROMPT, **each).tokens for each in options]
    async with AsyncClient(url) as client_:
        assert await client_.use_feed()

        async def read(each: dict[str, Any]) -> tuple[int, ...]:
            deltas = [delta async for delta in client_.stream(PROMPT, **each)]
            assert [delta.finish_reason for delta in deltas] == [None] * (len(deltas) - 1) + ["length"]
            return tuple(token for delta in deltas for token in delta.tokens)

        for _ in range(2):  # the second time over a feed that is open
            assert await asyncio.gather(*map(read, options)) == wanted


async def test_a_slow_reader_finds_what_has_come_meanwhile(url: str) -> None:
    async with AsyncClient(url) as client:
        await client.use_feed()
        sizes = []
        async for delta in client.stream(PROMPT, max_tokens=60, end_ids=()):
            sizes.append(len(delta.tokens))
            await asyncio.sleep(0.2)
    assert sum(sizes) == 60 and len(sizes) < 30


async def test_leaving_a_fed_stream_frees_it_and_leaves_the_others_alone(url: str, gateway: Gateway) -> None:
    async with AsyncClient(url) as client:
        await client.use_feed()
        async with client.stream(PROMPT, **ENDLESS) as left:
            await left.__anext__()
            staying = client.stream(PROMPT, max_tokens=80, end_ids=())
            await staying.__anext__()
        read = [delta async for delta in staying]
        assert read[-1].finish_reason == "length"
        assert await asyncio.to_thread(lambda: eventually(lambda: gateway.metric("vllm:num_requests_running") == 0))


async def test_a_feed_is_left_when_no_stream_is_in_it(url: str) -> None:
    """Triton's end waits for every request, and an open feed is one."""
    async with AsyncClient(url) as client:
        await client.use_feed()
        _ = [delta async for delta in client.stream(PROMPT, max_tokens=3)]
        feed = client._feed
        assert feed is not None and feed._reading is not None
        await asyncio.sleep(0.5)
        assert feed._reading is None
        _ = [delta async for delta in client.stream(PROMPT, max_tokens=3)]


async def test_a_timeout_of_a_fed_stream_ends_it_alone(url: str) -> None:
    async with AsyncClient(url) as client:
        await client.use_feed()
        staying = client.stream(PROMPT, max_tokens=120, end_ids=())
        with pytest.raises(DeadlineError):
            async for _ in client.stream(PROMPT, **ENDLESS, timeout=0.4):
                pass
        assert sum([len(delta.tokens) async for delta in staying]) == 120
