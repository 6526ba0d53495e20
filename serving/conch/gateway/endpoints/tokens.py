"""POST /tokenize and /detokenize, in vLLM's shapes: texts and conversations to ids, and ids to text."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from pydantic import Field, model_validator

from conch.gateway.admission.ceilings import check_id
from conch.gateway.body import read_body, validated
from conch.gateway.context import Context
from conch.gateway.keys.authority import check_model
from conch.gateway.prompts.templating import chat_prompt
from conch.gateway.protocol import ChatRequest, Message, Tool
from conch.gateway.protocol.base import Part
from conch.gateway.served import Served


class TokenizeRequest(Part):
    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = Field(None, min_length=1)
    """Instead of a prompt."""
    add_special_tokens: bool | None = None
    """What the tokenizer itself puts around a text; absent: yes for a prompt, no for messages."""
    return_token_strs: bool = False
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    tools: list[Tool] = Field(default_factory=list)
    chat_template_kwargs: dict[str, bool | int | str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _one(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("`prompt` or `messages` is needed, and not both")
        if self.messages is not None and self.add_special_tokens:
            raise ValueError("`add_special_tokens`: a chat template writes them itself")
        return self


class DetokenizeRequest(Part):
    model: str | None = None
    tokens: list[int]


class Tokens:
    def __init__(self, context: Context) -> None:
        self.context = context

    def router(self) -> APIRouter:
        router = APIRouter()
        router.add_api_route("/tokenize", self.tokenize, methods=["POST"], response_model=None)
        router.add_api_route("/detokenize", self.detokenize, methods=["POST"], response_model=None)
        return router

    async def tokenize(self, request: Request) -> dict[str, Any]:
        """The ids of a text or a conversation, as a request with it would have them."""
        context = self.context
        body = await read_body(request, TokenizeRequest, {}, lenient=context.settings.lenient)
        served = context.catalog.find(body.model)
        check_model(request, body.model or served.name)
        if body.messages is None:
            ids = await served.off_loop(len(body.prompt or ""), _encode, body, served)
        else:
            size = sum(len(message.content or "") for message in body.messages)
            ids = await served.off_loop(size, _chat, body, served)
        shown = {"count": len(ids), "max_model_len": served.settings.max_seq_len, "tokens": ids}
        names = served.tokenizer.hf.convert_ids_to_tokens(ids) if body.return_token_strs else None
        return {**shown, "token_strs": names}

    async def detokenize(self, request: Request) -> dict[str, Any]:
        """The text of ids, special tokens included."""
        context = self.context
        body = await read_body(request, DetokenizeRequest, {}, lenient=context.settings.lenient)
        served = context.catalog.find(body.model)
        check_model(request, body.model or served.name)
        for token in body.tokens:
            check_id(token, "tokens", served.settings.vocab_size)
        return {"prompt": await served.off_loop(len(body.tokens), served.tokenizer.whole_decoder.text, body.tokens)}


def _encode(body: TokenizeRequest, served: Served) -> list[int]:
    special = body.add_special_tokens is not False
    return served.tokenizer.encode(body.prompt or "", special=special)


def _chat(body: TokenizeRequest, served: Served) -> list[int]:
    taken = ("messages", "add_generation_prompt", "continue_final_message", "tools", "chat_template_kwargs")
    given = {name: getattr(body, name) for name in taken if name in body.model_fields_set}
    chat = validated(given, ChatRequest)
    return chat_prompt(chat, chat.tools, served.tokenizer, served.tokenizer.dialect).ids
