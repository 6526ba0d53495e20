"""/tokenize and /detokenize agree with what requests are counted as."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.conftest import Gateway

HELLO = [{"role": "user", "content": "Hello"}]
TOOL = {"type": "function", "function": {"name": "now"}}


def tokenized(gateway: Gateway, **body: Any) -> dict[str, Any]:
    response = gateway.http.post("/tokenize", json=body)
    assert response.status_code == 200, response.text
    return dict(response.json())


@pytest.mark.conforms("TOK-1")
def test_a_text_has_the_ids_that_its_request_has(gateway: Gateway) -> None:
    told = tokenized(gateway, prompt="Say hi", model="smollm2", return_token_strs=True)
    assert told["count"] == len(told["tokens"]) == len(told["token_strs"]) == 3
    assert told["max_model_len"] == gateway.context
    assert gateway.ok("completions", prompt="Say hi", max_tokens=1)["usage"]["prompt_tokens"] == 3
    plain = tokenized(gateway, prompt="Say hi", add_special_tokens=False)
    assert plain["tokens"] == told["tokens"][1:] and plain["token_strs"] is None


@pytest.mark.conforms("TOK-1")
def test_a_conversation_has_the_ids_that_its_request_has(gateway: Gateway) -> None:
    for more in ({}, {"tools": [TOOL]}):
        told = tokenized(gateway, messages=HELLO, **more)
        answer = gateway.ok("chat/completions", messages=HELLO, max_tokens=1, **more)
        assert answer["usage"]["prompt_tokens"] == told["count"]
    assert tokenized(gateway, messages=HELLO, add_generation_prompt=False)["count"] < 31


@pytest.mark.conforms("TOK-1")
@pytest.mark.parametrize(
    "text", ["a  b", "\n\n x", "12:30", "naïve façade – 45 🙂", "깰 中文", "<|im_end|>", " " * 300]
)
def test_ids_become_the_same_text_again(gateway: Gateway, text: str) -> None:
    ids = tokenized(gateway, prompt=text, add_special_tokens=False)["tokens"]
    assert gateway.http.post("/detokenize", json={"tokens": ids}).json() == {"prompt": text}


@pytest.mark.conforms("TOK-1", "REQ-5", "REQ-7")
@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/tokenize", {}, 400, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": HELLO}, 400, "prompt"),
        ("/tokenize", {"prompt": "a", "model": "nope"}, 404, "model"),
        ("/tokenize", {"messages": HELLO, "tools": [TOOL, TOOL]}, 400, "tools"),
        ("/tokenize", {"messages": HELLO, "chat_template_kwargs": {"x": 1}}, 400, "chat_template_kwargs"),
        ("/tokenize", {"prompt": "a", "nonsense": 1}, 400, "nonsense"),
        ("/detokenize", {"tokens": [49152]}, 400, "tokens"),
        ("/detokenize", {"tokens": ["a"]}, 400, "tokens[0]"),
        ("/detokenize", {"tokens": [1], "model": "nope"}, 404, "model"),
        ("/v1/completions", {"prompt": "a", "model": "nope"}, 404, "model"),
        ("/v1/chat/completions", {"messages": HELLO, "model": "nope"}, 404, "model"),
        ("/v1/responses", {"input": "a", "model": "nope"}, 404, "model"),
    ],
    ids=str,
)
def test_mistakes_are_named(gateway: Gateway, path: str, body: Any, status: int, param: str) -> None:
    response = gateway.http.post(path, json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (status, param)
