"""POST /tokenize and /detokenize, in vLLM's shapes: texts and conversations to ids, and ids to text."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from pydantic import Field, model_validator

from conch.gateway.body import read_body, validated
from conch.gateway.ceilings import check_id, check_model
from conch.gateway.context import Context
from conch.gateway.protocol import ChatRequest, Message, Tool
from conch.gateway.protocol.base import Part
from conch.gateway.templating import chat_prompt


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
        check_model(body.model, context.settings)
        if body.messages is None:
            ids = await context.off_loop(len(body.prompt or ""), self._encode, body)
        else:
            size = sum(len(message.content or "") for message in body.messages)
            ids = await context.off_loop(size, self._chat, body)
        shown = {"count": len(ids), "max_model_len": context.settings.max_seq_len, "tokens": ids}
        names = context.tokenizer.hf.convert_ids_to_tokens(ids) if body.return_token_strs else None
        return {**shown, "token_strs": names}

    async def detokenize(self, request: Request) -> dict[str, Any]:
        """The text of ids, special tokens included."""
        context = self.context
        body = await read_body(request, DetokenizeRequest, {}, lenient=context.settings.lenient)
        check_model(body.model, context.settings)
        for token in body.tokens:
            check_id(token, "tokens", context.settings.vocab_size)
        return {"prompt": await context.off_loop(len(body.tokens), context.tokenizer.whole_decoder.text, body.tokens)}

    def _encode(self, body: TokenizeRequest) -> list[int]:
        special = body.add_special_tokens is not False
        return self.context.tokenizer.encode(body.prompt or "", special=special)

    def _chat(self, body: TokenizeRequest) -> list[int]:
        taken = ("messages", "add_generation_prompt", "continue_final_message", "tools", "chat_template_kwargs")
        given = {name: getattr(body, name) for name in taken if name in body.model_fields_set}
        chat = validated(given, ChatRequest)
        tokenizer = self.context.tokenizer
        return chat_prompt(chat, chat.tools, tokenizer, tokenizer.dialect).ids
