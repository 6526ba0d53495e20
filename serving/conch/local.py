"""An engine in this process, for one person: no server, no port. It answers as the gateway would, in plain chat."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from conch_build.errors import RequestError


class LocalEngine:
    """The compiled engine in `folder`, loaded; `close` it. Raises StoreError or SetupError."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoTokenizer

        from conch.engine.loading import TOKENIZER_DIR, load_engine
        from conch.text import IdDecoder

        self.engine = load_engine(folder)
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder / TOKENIZER_DIR)
        self.decoder = IdDecoder.load(folder / TOKENIZER_DIR)

    def ask(self, messages: list[dict[str, str]], options: dict[str, Any]) -> LocalAnswer:
        """`options`: `max_tokens` and `temperature`, None for what the API takes."""
        return LocalAnswer(self, messages, options)

    def close(self) -> None:
        self.engine.close()


class LocalAnswer:
    """One answer as it is made: iterate over its text; afterwards its finish reason and usage are known."""

    def __init__(self, local: LocalEngine, messages: list[dict[str, str]], options: dict[str, Any]) -> None:
        self.finish_reason: str | None = None
        self.usage: dict[str, Any] | None = None
        self._local = local
        self._messages = messages
        self._options = options

    def __iter__(self) -> Iterator[str]:
        """Raises RequestError for a conversation that does not fit."""
        from conch.engine import Output, Request, SamplingParams
        from conch.text import Detokenizer

        local, outputs = self._local, queue.SimpleQueue[Output]()
        if local.tokenizer.chat_template is None:
            raise RequestError("the model has no chat template, so it cannot chat")
        ids = local.tokenizer.apply_chat_template(self._messages, add_generation_prompt=True)
        room = local.engine.config.max_seq_len - len(ids)
        if room < 1:
            raise RequestError(f"the conversation has {len(ids)} tokens, and the context ends before an answer")
        temperature = self._options.get("temperature")
        sampling = SamplingParams(temperature=1.0 if temperature is None else temperature)
        most = min(self._options.get("max_tokens") or room, room)
        local.engine.submit(Request("chat", ids, most, sampling), outputs.put)
        text, count, over = Detokenizer(local.decoder), 0, False
        try:
            while not over:
                output = outputs.get()
                over = output.final
                if output.error is not None:
                    raise output.error
                count += len(output.tokens)
                piece = text.push(output.tokens) + (text.flush() if over else "")
                if piece:
                    yield piece
            self.finish_reason = output.finish_reason
            self.usage = {"prompt_tokens": len(ids), "completion_tokens": count, "total_tokens": len(ids) + count}
        finally:
            if not over:
                local.engine.cancel("chat")
                while not outputs.get().final:
                    pass
