"""A model whose template reasons and knows tools, as far as the sample's weights can show it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.contract.conftest import Gateway, reason_of, running_gateway, text_of
from tests.contract.test_gateway_tools import ASKED, TOOLS, calls_of

if TYPE_CHECKING:
    from conch.triton import TritonServer
    from conch_build.pipeline import BuildResult

TEMPLATE = (
    "{% if tools %}<|im_start|>system\nCall tools by <tool_call></tool_call>: {{ tools|tojson }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{{ m.content }}{% if m.tool_calls %}{{ m.tool_calls|tojson }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "<think>\n{% if enable_thinking is defined and not enable_thinking %}\n</think>\n\n{% endif %}{% endif %}"
)
HELLO = {"messages": [{"role": "user", "content": "Say hi"}], "max_tokens": 12, "temperature": 0}


@pytest.fixture(scope="module")
def reasoner(
    stack_triton: TritonServer, sample_build: BuildResult, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    folder: Path = tmp_path_factory.mktemp("reasoner")
    shutil.copytree(sample_build.engine.path / "tokenizer", folder / "tokenizer")
    shutil.copy(sample_build.engine.path / "engine.json", folder)
    (folder / "tokenizer" / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    with running_gateway(stack_triton, folder) as gateway:
        yield gateway


@pytest.mark.conforms("THINK-1", "GEN-1", "GEN-3")
def test_reasoning_comes_apart_from_the_answer(reasoner: Gateway) -> None:
    whole = reasoner.ok("chat/completions", **HELLO)
    message = whole["choices"][0]["message"]
    assert message["content"] is None and message["reasoning"] == message["reasoning_content"] != ""
    assert whole["usage"]["completion_tokens_details"]["reasoning_tokens"] == 12
    events = reasoner.ok("chat/completions", **HELLO, stream=True)
    deltas = [event["choices"][0]["delta"] for event in events]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == message["reasoning_content"]
    response = reasoner.ok("responses", input="Say hi", max_output_tokens=12, temperature=0)
    assert [item["type"] for item in response["output"]] == ["reasoning"]
    assert response["output"][0]["content"][0]["text"] == message["reasoning_content"]
    assert response["usage"]["output_tokens_details"]["reasoning_tokens"] == 12


@pytest.mark.conforms("THINK-2")
def test_reasoning_can_be_turned_off(reasoner: Gateway) -> None:
    for way in ({"reasoning_effort": "none"}, {"chat_template_kwargs": {"enable_thinking": False}}):
        message = reasoner.ok("chat/completions", **HELLO, **way)["choices"][0]["message"]
        assert message["content"] and "reasoning_content" not in message
    response = reasoner.ok("responses", input="Say hi", max_output_tokens=5, reasoning={"effort": "none"})
    assert [item["type"] for item in response["output"]] == ["message"]


@pytest.mark.conforms("THINK-3", "GUIDE-1", "TOOL-1")
def test_what_must_have_a_form_does_not_begin_with_reasoning(reasoner: Gateway) -> None:
    answer = reasoner.ok("chat/completions", **HELLO, guided_choice=["yes", "no"])
    assert text_of(answer) in ("yes", "no") and reason_of(answer) == "stop"
    called = reasoner.ok("chat/completions", **ASKED, tools=TOOLS, tool_choice="required", parallel_tool_calls=False)
    ((name, arguments),) = calls_of(called)
    assert name in ("get_weather", "now", "ping") and isinstance(json.loads(arguments), dict)


@pytest.mark.conforms("TOOL-10", "TOK-1")
def test_a_template_that_shows_tools_shows_them_itself(reasoner: Gateway) -> None:
    body: dict[str, Any] = {"messages": HELLO["messages"], "tools": TOOLS}
    ids = reasoner.http.post("/tokenize", json=body).json()["tokens"]
    shown = reasoner.http.post("/detokenize", json={"tokens": ids}).json()["prompt"]
    assert "Call tools by <tool_call>" in shown and "You may call functions" not in shown
