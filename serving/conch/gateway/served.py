"""A model as requests meet it: what is known of it, its tokenizer, the door to its engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from conch.gateway.metrics import Metrics
from conch.gateway.protocol import Generation
from conch.gateway.settings import ModelSettings
from conch.gateway.tokenizer import Tokenizer
from conch.gateway.upstream import Upstream
from conch.text import IdDecoder
from conch_build.errors import NotFoundError

T = TypeVar("T")


class Served:
    def __init__(self, settings: ModelSettings, metrics: Metrics) -> None:
        """Raises SetupError."""
        self.settings = settings
        self.tokenizer = Tokenizer(settings.tokenizer, settings.tool_format)
        self.metrics = metrics.of(settings.name)
        self.upstream = Upstream(settings, settings.servers[0], self.tokenizer)

    @property
    def name(self) -> str:
        return self.settings.name

    async def off_loop(self, size: int, work: Callable[..., T], *arguments: Any) -> T:
        """Run `work` at once when its input is small (in characters), else in a thread: streams must flow."""
        if size <= self.settings.limits.inline_chars:
            return work(*arguments)
        return await asyncio.to_thread(work, *arguments)

    def decoder_for(self, body: Generation, *, marking: bool = False) -> IdDecoder:
        """How an answer's ids become text; `marking`: with the marks of calls and of reasoning."""
        if not body.skip_special_tokens:
            return self.tokenizer.whole_decoder
        return self.tokenizer.marking_decoder if marking else self.tokenizer.decoder


class Catalog:
    """The models of a gateway by the names that requests may give."""

    def __init__(self, models: Iterable[Served]) -> None:
        self._models = list(models)
        self._by_name = {name: model for model in self._models for name in (model.name, *model.settings.adapters)}

    def __iter__(self) -> Iterator[Served]:
        return iter(self._models)

    def find(self, name: str | None) -> Served:
        """The model of that name, or of the adapter of that name; of none the first one. Raises NotFoundError."""
        if name is None:
            return self._models[0]
        if name not in self._by_name:
            raise NotFoundError(f"The model '{name}' does not exist", param="model", code="model_not_found")
        return self._by_name[name]
