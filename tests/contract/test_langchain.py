"""`langchain-openai`, as agents use it, against the running stack."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from tests.contract.conftest import Gateway

pytest.importorskip("langchain_openai", reason="not for this version of Python")

from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI


class Person(BaseModel):
    """A person."""

    name: str
    age: int


@tool
def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"Rain in {city}"


@pytest.fixture(scope="module", params=[False, True], ids=["chat", "responses"])
def model(gateway: Gateway, request: pytest.FixtureRequest) -> ChatOpenAI:
    options: dict[str, Any] = {"model": "smollm2", "api_key": "none", "temperature": 0, "max_retries": 0}
    return ChatOpenAI(base_url=f"{gateway.url}/v1", use_responses_api=request.param, max_tokens=120, **options)


@pytest.mark.conforms("API-2")
def test_it_chats_and_streams(model: ChatOpenAI) -> None:
    whole = model.invoke("Say hi")
    assert whole.text and whole.usage_metadata is not None
    assert "".join(chunk.text for chunk in model.stream("Say hi")) == whole.text


@pytest.mark.conforms("API-2", "TOOL-9")
def test_it_calls_tools_and_goes_on(model: ChatOpenAI) -> None:
    asked = [HumanMessage("Weather in Oslo?")]
    message = model.bind_tools([get_weather], tool_choice="get_weather", strict=True).invoke(asked)
    assert isinstance(message, AIMessage)
    (call,) = message.tool_calls
    assert call["name"] == "get_weather" and call["args"].keys() == {"city"}
    answered = ToolMessage(get_weather.invoke(call["args"]), tool_call_id=str(call["id"]))
    assert model.bind_tools([get_weather]).invoke([*asked, message, answered]).text


@pytest.mark.conforms("API-2", "GUIDE-1")
@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_it_reads_structured_output(model: ChatOpenAI, method: Any) -> None:
    assert isinstance(model.with_structured_output(Person, method=method).invoke("Ada is 36."), Person)
