"""A Triton with the models that Conch packs, over gRPC: token ids in and out, so that every chunk tells its tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from conch.bench.traffic.openai import joined
from conch.bench.traffic.record import Ask, Content, Record
from conch_build.errors import InputError

if TYPE_CHECKING:
    from conch.client import AsyncClient


class TritonTarget:
    """`address`: host:port. A model's name is that of a LoRA adapter, or "" for the model itself."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._client: AsyncClient | None = None
        self._adapters: dict[str, int] = {}

    async def open(self) -> None:
        """Connect. Raises ServiceError, or one of its kinds, when nothing answers."""
        from conch.client import AsyncClient

        self._client = AsyncClient(self.address)
        await self._client.probe()

    async def use(self, models: list[str]) -> None:
        """Find the adapters of these names. Raises InputError for unknown ones."""
        assert self._client is not None
        names = [name for name in models if name]
        known = {str(a["name"]): int(a["id"]) for a in await self._client.adapters()} if names else {}
        if missing := [name for name in names if name not in known]:
            told = f"It has {', '.join(known)}." if known else "It has none."
            raise InputError(f"no adapter {missing[0]!r}", where=self.address, fix=told)
        self._adapters = known

    async def send(self, ask: Ask, record: Record, now: Callable[[], float]) -> Content:
        assert self._client is not None
        prompt = joined(ask.parts)
        record.prompt_tokens = len(prompt)
        tokens: list[int] = []
        async with self._client.stream(
            prompt,
            max_tokens=ask.max_tokens,
            temperature=0.0,
            end_ids=(),
            lora_task_id=self._adapters.get(ask.model),
        ) as stream:
            async for delta in stream:
                if delta.tokens:
                    record.arrived(now(), len(delta.tokens))
                    tokens += delta.tokens
                    record.tokens = len(tokens)
                if delta.finish_reason is not None:
                    record.cached_tokens = delta.cached_tokens
                    record.draft_tokens, record.accepted_tokens = delta.draft_tokens, delta.accepted_tokens
                elif ask.cancel_after is not None and len(tokens) >= ask.cancel_after:
                    record.cancelled = True
                    break
        return tuple(tokens)

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()
