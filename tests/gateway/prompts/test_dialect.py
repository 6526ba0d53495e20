"""Chat templates: what they say of a model, and the prompts that they make with tools and reasoning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Rust
from tokenizers import decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from conch.gateway.prompts.dialect import Dialect
from conch.gateway.prompts.templating import chat_prompt
from conch.gateway.prompts.tokenizer import Tokenizer
from conch.gateway.protocol import ChatRequest
from conch_build.errors import RequestError, SetupError, UnsupportedError

TURNS = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}"
    "{% if m.tool_calls %}{{ m.tool_calls|tojson }}{% endif %}\n{% endfor %}"
)
START = "{% if add_generation_prompt %}<assistant>{% endif %}"
SHOWN = "{% if tools %}{{ tools|tojson }}{% endif %}"
UNTHINKING = "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
QWEN = f"{SHOWN}{{# <tool_call> #}}{TURNS}{START}{UNTHINKING}"
R1 = TURNS + START + "{% if add_generation_prompt %}<think>\n{% endif %}{# </think> #}{{ '</think>' if false }}"
TOOL = {"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}}
HELLO = {"messages": [{"role": "user", "content": "hi"}]}


def tokenizer(folder: Path, template: str) -> Tokenizer:
    """Every byte a token, and marks that are special."""
    alphabet = {character: index for index, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    rust = Rust(models.BPE(vocab=alphabet, merges=[]))
    rust.pre_tokenizer, rust.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=rust, chat_template=template)
    fast.add_special_tokens({"additional_special_tokens": ["<think>", "</think>", "[TOOL_CALLS]", "<|end|>"]})
    fast.save_pretrained(folder)
    return Tokenizer(folder)


def prompt(tokens: Tokenizer, tools: list[Any] | None = None, reasoning: bool = True, **more: Any) -> tuple[str, bool]:
    body = ChatRequest.model_validate({**HELLO, "tools": tools or [], **more})
    made = chat_prompt(body, body.tools, tokens, tokens.dialect, reasoning=reasoning)
    return tokens.whole_decoder.text(made.ids), made.reasons


@pytest.mark.conforms("TOOL-10")
@pytest.mark.parametrize(
    ("template", "name", "shows"),
    [
        (QWEN, "hermes", True),
        (SHOWN + "<|python_tag|>", "llama3_json", True),
        (SHOWN + "[TOOL_CALLS]", "mistral", True),
        (SHOWN + "[TOOL_CALLS]x[ARGS]", "mistral_args", True),
        (SHOWN + TURNS, "hermes", False),
        (TURNS, "hermes", False),
        (None, "hermes", False),
        ("{% broken", "hermes", False),
    ],
)
def test_a_template_tells_how_its_model_calls(template: str | None, name: str, shows: bool) -> None:
    dialect = Dialect.of(template)
    assert (dialect.markup.name, dialect.shows_tools) == (name, shows)
    assert Dialect.of(template, "mistral").markup.name == "mistral"
    with pytest.raises(SetupError, match="hermes"):
        Dialect.of(template, "hermse")


@pytest.mark.conforms("TOOL-10", "TOOL-9")
def test_tools_reach_the_model_through_its_template_or_the_system_turn(tmp_path: Path) -> None:
    text, _ = prompt(tokenizer(tmp_path / "a", QWEN), [TOOL])
    assert text.startswith('[{"type": "function", "function": {"name": "now"') and "<user>hi" in text
    plain = tokenizer(tmp_path / "b", TURNS + START)
    text, _ = prompt(plain, [TOOL])
    assert text.startswith("<system>You may call functions") and '{"name": "now"' in text
    call = {"id": "c", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    turns = [
        {"role": "system", "content": "Be brief."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "noon"},
    ]
    text, _ = prompt(plain, [TOOL], messages=turns)
    assert text.startswith("<system>Be brief.\n\nYou may")
    assert '<assistant><tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>' in text
    assert "<user><tool_response>\nnoon\n</tool_response>" in text


@pytest.mark.conforms("THINK-1", "THINK-3")
def test_reasoning_that_the_template_opens_is_closed_where_there_must_be_none(tmp_path: Path) -> None:
    tokens = tokenizer(tmp_path, R1)
    assert prompt(tokens) == ("<user>hi<assistant><think>\n", True)
    assert prompt(tokens, reasoning=False) == ("<user>hi<assistant><think>\n</think>\n\n", False)


@pytest.mark.conforms("THINK-2", "GEN-13")
def test_what_the_template_has_may_be_set(tmp_path: Path) -> None:
    tokens = tokenizer(tmp_path / "a", QWEN)
    assert prompt(tokens)[0].endswith("<assistant>")
    for way in ({"reasoning_effort": "none"}, {"chat_template_kwargs": {"enable_thinking": False}}):
        assert prompt(tokens, **way)[0].endswith("<think>\n\n</think>\n\n")
    with pytest.raises(RequestError, match="enable_thinking"):
        prompt(tokens, chat_template_kwargs={"enable_thinkng": False})
    with pytest.raises(RequestError, match="messages"):
        prompt(tokens, chat_template_kwargs={"messages": "x"})
    plain = tokenizer(tmp_path / "b", TURNS)
    assert prompt(plain, reasoning_effort="none")
    with pytest.raises(UnsupportedError):
        prompt(plain, reasoning_effort="low")


@pytest.mark.conforms("TOOL-10", "THINK-1")
def test_marks_that_are_special_tokens_are_seen_in_answers(tmp_path: Path) -> None:
    tokens = tokenizer(tmp_path, SHOWN + "[TOOL_CALLS]</think>")
    ids = tokens.encode("<think>a</think>[TOOL_CALLS]b<|end|>", special=False)
    assert tokens.marking_decoder.text(ids) == "<think>a</think>[TOOL_CALLS]b"
    assert tokens.decoder.text(ids) == "ab"
