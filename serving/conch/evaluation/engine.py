"""A compiled engine, asked in process: whole rows of logits by its runner, greedy answers by the engine itself."""

from __future__ import annotations

import json
import queue
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from conch.engine import EngineConfig, Output, Request, SamplingParams, Slot
from conch.engine.guide import Guide
from conch.engine.loading import TOKENIZER_DIR, load_engine
from conch.engine.runner import OpenVINORunner
from conch.text import IdDecoder
from conch_build.manifest import EngineManifest
from conch_build.quality import CHUNK, FullRows, Rows, Task
from conch_build.stages import Say


class EngineSubject:
    """The engine in `folder`, a `conch_build.quality.Subject`. Its model is in memory only while it is asked."""

    def __init__(self, folder: Path, say: Say = lambda text: None) -> None:
        self._folder = folder
        self._say = say

    def ids(self, text: str) -> list[int]:
        found: list[int] = self.tokenizer(text)["input_ids"]
        return found[: self.manifest.max_seq_len]

    def rows(self, texts: Sequence[Sequence[int]]) -> Iterator[Rows]:
        longest = max(map(len, texts))
        table = list(range(-(-longest // self.manifest.kv_cache.tokens_per_block)))
        runner = OpenVINORunner(self._folder, self.manifest, len(table))
        for ids in texts:
            for start in range(0, len(ids) - 1, CHUNK):
                part = list(ids[start : min(start + CHUNK, len(ids) - 1)])
                found = runner.step([Slot(part, start, table, rows=len(part))])
                assert found is not None
                yield FullRows(tuple(ids[start + 1 : start + 1 + len(part)]), found.logits.copy())

    def answers(self, tasks: Sequence[Task]) -> list[str]:
        """Greedy, as many at once as the engine batches. Raises what the engine says of a task that it cannot take."""
        self._say(f"quality     {len(tasks)} answers of {self._folder.name}")
        decoder = IdDecoder.load(self._folder / TOKENIZER_DIR)
        outputs: queue.SimpleQueue[Output] = queue.SimpleQueue()
        tokens: list[list[int]] = [[] for _ in tasks]
        waiting, under_way = iter(enumerate(tasks)), 0
        with load_engine(self._folder) as engine:
            while True:
                while under_way < engine.config.batch_size and (following := next(waiting, None)):
                    engine.submit(self._request(*following, engine.config), outputs.put)
                    under_way += 1
                if not under_way:
                    break
                output = outputs.get()
                if output.error:
                    raise output.error
                tokens[int(output.request_id)] += output.tokens
                under_way -= output.final
        return [decoder.text(ids) for ids in tokens]

    @cached_property
    def manifest(self) -> EngineManifest:
        return EngineManifest.load(self._folder)

    @cached_property
    def tokenizer(self) -> Any:
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(self._folder / TOKENIZER_DIR)

    def _request(self, number: int, task: Task, config: EngineConfig) -> Request:
        if task.messages is None:
            ids = self.tokenizer(task.prompt)["input_ids"]
        else:
            messages = [message.model_dump() for message in task.messages]
            ids = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True)
        guide = None if task.schema_ is None else Guide("json_schema", json.dumps(task.schema_))
        room = max(1, config.max_seq_len - len(ids))
        return Request(str(number), ids, min(task.max_tokens, room), SamplingParams(temperature=0.0, guide=guide))
