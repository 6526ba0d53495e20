"""A model as requests meet it: what is known of it, its tokenizer, the door to its engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from conch.gateway.prompts.tokenizer import Tokenizer
from conch.gateway.protocol import Generation
from conch.gateway.relay import RelayUpstream
from conch.gateway.routing.pool import Pool
from conch.gateway.settings import ModelSettings
from conch.gateway.upstream import Upstream
from conch.gateway.watching.metrics import Metrics
from conch.text import IdDecoder
from conch_build.errors import NotFoundError, UnsupportedError

T = TypeVar("T")


class Served:
    def __init__(self, settings: ModelSettings, metrics: Metrics) -> None:
        """Raises SetupError."""
        self.settings = settings
        self.metrics = metrics.of(settings.name)
        self.edition = settings.tokenizer.parent.name if settings.tokenizer else ""
        """Which weights answer, as far as this gateway knows."""
        self.relay: RelayUpstream | None = None
        """Instead of tokenizer and upstream, where the servers speak OpenAI themselves."""
        self._tokenizer: Tokenizer | None = None
        self._upstream: Upstream | None = None
        if settings.tokenizer is None:
            self.relay = RelayUpstream(settings)
        else:
            self._tokenizer = Tokenizer(settings.tokenizer, settings.tool_format)
            self._upstream = Upstream(settings, self._tokenizer, metrics.disaggregated)

    @property
    def tokenizer(self) -> Tokenizer:
        """Raises UnsupportedError for a model whose servers tokenize."""
        if self._tokenizer is None:
            raise self._unable("texts are not tokenized here")
        return self._tokenizer

    @property
    def upstream(self) -> Upstream:
        """Raises UnsupportedError for a model whose servers take no tokens."""
        if self._upstream is None:
            raise self._unable("only chat completions and completions are answered")
        return self._upstream

    @property
    def servers(self) -> Upstream | RelayUpstream:
        """Whatever they speak."""
        return self.relay or self.upstream

    @property
    def pools(self) -> list[Pool[Any]]:
        """Of all servers that work on its requests; those that answer first."""
        return [self.servers.pool, *([self._upstream.context_pool] if self._upstream else [])]

    @property
    def name(self) -> str:
        return self.settings.name

    def changed(self) -> None:
        """Its weights, or an adapter's, are others from now on."""
        self.edition = f"{self.edition.partition('@')[0]}@{time.time_ns()}"

    def _unable(self, what: str) -> UnsupportedError:
        text = f"The model '{self.name}' has servers that speak OpenAI's API themselves: {what}"
        return UnsupportedError(text, param="model", code="unsupported_model")

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
