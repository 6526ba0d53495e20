"""The target's answers from its own engine, as many at once as it batches. Knows nothing of what they are for."""

from __future__ import annotations

import queue
from collections.abc import Generator, Iterator
from pathlib import Path

import numpy as np

from conch.engine import EngineConfig, Output, Request, SamplingParams
from conch.engine.loading import load_engine
from conch.engine.request import MAX_TOP_LOG_PROBS
from conch_build.draft import Answer, Prompt


def answers_of(engine_folder: Path, prompts: Iterator[Prompt], max_tokens: int) -> Generator[Answer, None, None]:
    """A `conch_build.draft.Generate`, but for the engine; this one is loaded as long as the iterator is open."""
    outputs: queue.SimpleQueue[Output] = queue.SimpleQueue()
    under_way: dict[str, tuple[Prompt, list[Output]]] = {}
    with load_engine(engine_folder) as engine:
        while True:
            while len(under_way) < engine.config.batch_size and (prompt := next(prompts, None)):
                request = _request(prompt, max_tokens, engine.config)
                under_way[request.id] = prompt, []
                engine.submit(request, outputs.put)
            if not under_way:
                return
            output = outputs.get()
            prompt, parts = under_way[output.request_id]
            parts.append(output)
            if output.error:
                raise output.error
            if output.final:
                del under_way[output.request_id]
                yield _answer(prompt, parts)


def _request(prompt: Prompt, max_tokens: int, config: EngineConfig) -> Request:
    sampling = SamplingParams(
        temperature=prompt.temperature,
        seed=prompt.number,
        # The end token must be in the answer, with what the target thought of it: here it is a stop word.
        end_ids=frozenset(),
        stop_words=tuple((token,) for token in sorted(config.end_ids)),
        log_probs=True,
        top_log_probs=MAX_TOP_LOG_PROBS,
    )
    room = config.max_seq_len - len(prompt.ids)
    return Request(f"draft-{prompt.number}", prompt.ids, min(max_tokens, room), sampling)


def _answer(prompt: Prompt, parts: list[Output]) -> Answer:
    tokens = [token for part in parts for token in part.tokens]
    top = np.array([row for part in parts for row in part.top or ()])  # [n, K, (id, log probability)]
    return Answer(prompt, np.array(tokens, np.int32), top[..., 0].astype(np.int32), top[..., 1].astype(np.float32))
