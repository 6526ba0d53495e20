"""The official `openai` SDK against the running stack: sync, async, streaming, with its own typed errors."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from tests.contract.conftest import Gateway, eventually

HELLO: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "Hello"}]


@pytest.mark.conforms("MODEL-1", "REQ-5")
def test_models_are_listed_and_found(sdk: openai.OpenAI) -> None:
    assert [model.id for model in sdk.models.list()] == ["smollm2"]
    assert sdk.models.retrieve("smollm2").owned_by == "conch"
    with pytest.raises(openai.NotFoundError) as caught:
        sdk.models.retrieve("nope")
    assert caught.value.code == "model_not_found"


def test_a_chat_is_answered(sdk: openai.OpenAI) -> None:
    answer = sdk.chat.completions.create(model="smollm2", messages=HELLO, max_tokens=8, temperature=0)
    assert answer.id.startswith("chatcmpl-")
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_the_streamed_chat_is_the_whole_one(sdk: openai.OpenAI) -> None:
    whole = sdk.chat.completions.create(model="smollm2", messages=HELLO, max_tokens=12, temperature=0)
    stream = sdk.chat.completions.create(
        model="smollm2",
        messages=HELLO,
        max_tokens=12,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].usage == whole.usage
    assert len({chunk.id for chunk in chunks}) == 1


def test_a_text_is_completed_with_log_probs(sdk: openai.OpenAI) -> None:
    answer = sdk.completions.create(model="smollm2", prompt="1, 2, 3,", max_tokens=4, temperature=0, logprobs=2)
    log_probs = answer.choices[0].logprobs
    assert log_probs is not None and log_probs.tokens is not None
    assert "".join(log_probs.tokens) == answer.choices[0].text


def test_an_answer_can_be_fed_back(sdk: openai.OpenAI) -> None:
    first = sdk.chat.completions.create(model="smollm2", messages=HELLO, max_tokens=4).choices[0].message
    turns = [*HELLO, first.model_dump(), {"role": "user", "content": "Go on"}]
    assert sdk.chat.completions.create(model="smollm2", messages=turns, max_tokens=4).choices


def test_errors_are_the_sdks_own(sdk: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        sdk.chat.completions.create(model="smollm2", messages=HELLO, temperature=3)
    assert caught.value.param == "temperature"
    with pytest.raises(openai.NotFoundError):
        sdk.chat.completions.create(model="nope", messages=HELLO)


async def test_many_chats_run_at_once(async_sdk: openai.AsyncOpenAI) -> None:
    async def count(number: int) -> str:
        answer = await async_sdk.completions.create(
            model="smollm2", prompt=f"{number}, {number + 1},", max_tokens=8, temperature=0
        )
        return answer.choices[0].text

    together = await asyncio.gather(*[count(number) for number in range(8)])
    assert together == [await count(number) for number in range(8)]


@pytest.mark.conforms("GEN-14")
async def test_leaving_a_stream_cancels_it(async_sdk: openai.AsyncOpenAI, gateway: Gateway) -> None:
    before = gateway.metric("vllm:request_success_total", finished_reason="abort")
    stream = await async_sdk.completions.create(
        model="smollm2", prompt="1,", max_tokens=1500, stream=True, extra_body={"ignore_eos": True}
    )
    async for _ in stream:
        break
    await stream.close()
    assert eventually(lambda: gateway.metric("vllm:request_success_total", finished_reason="abort") == before + 1)


@pytest.mark.conforms("GUIDE-1", "TOOL-2")
def test_structured_output_and_calls_are_parsed(sdk: openai.OpenAI) -> None:
    class City(BaseModel):
        name: str

    turns: Any = [{"role": "user", "content": "Where is the Eiffel tower?"}]
    asked: Any = {"model": "smollm2", "messages": turns, "max_tokens": 100, "temperature": 0}
    parsed = sdk.chat.completions.parse(**asked, response_format=City)
    assert isinstance(parsed.choices[0].message.parsed, City)
    find = openai.pydantic_function_tool(City, name="find")
    called = sdk.chat.completions.parse(**asked, tools=[find], tool_choice="required").choices[0].message.tool_calls
    assert called is not None and isinstance(called[0].function.parsed_arguments, City)


@pytest.mark.conforms("TOOL-6", "GEN-1")
def test_the_sdk_puts_a_streamed_call_together(sdk: openai.OpenAI) -> None:
    tools: Any = [{"type": "function", "function": {"name": "ping", "parameters": {"type": "object"}}}]
    with sdk.chat.completions.stream(
        model="smollm2", messages=HELLO, tools=tools, tool_choice="required", max_tokens=60
    ) as stream:
        kinds = {event.type for event in stream}
        message = stream.get_final_completion().choices[0].message
    assert "tool_calls.function.arguments.done" in kinds
    assert message.tool_calls is not None and message.tool_calls[0].function.arguments == "{}"


@pytest.mark.conforms("GEN-1")
def test_a_raw_stream_is_server_sent_events(sdk: openai.OpenAI) -> None:
    with sdk.chat.completions.with_streaming_response.create(
        model="smollm2", messages=HELLO, max_tokens=3, stream=True
    ) as response:
        lines = [line for line in response.iter_lines() if line]
    assert response.headers["content-type"].startswith("text/event-stream") and response.headers["x-request-id"]
    assert all(line.startswith("data: {") for line in lines[:-1]) and lines[-1] == "data: [DONE]"
