"""transformers as it comes: `generate` with or without its cache, a request at a time or a batch that ends together."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from conch.bench.figures import Timing
from conch.ladder.workload import Ask, Job


class Transformers:
    """`dtype`: `bfloat16` or `float32`. `batched`: as many at once as the job has at once."""

    def __init__(self, checkpoint: Path, dtype: str, threads: int, *, cache: bool, batched: bool) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(threads)
        self._model: Any = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=getattr(torch, dtype)).eval()
        settings = self._model.generation_config
        settings.eos_token_id, settings.pad_token_id, settings.do_sample = None, 0, False
        settings.temperature = settings.top_p = settings.top_k = None
        self._cache, self._batched = cache, batched

    def run(self, job: Job) -> list[Timing]:
        size = job.at_once if self._batched else 1
        batches = (job.asks[start : start + size] for start in range(0, len(job.asks), size))
        return [timing for batch in batches for timing in self._answer(batch)]

    def _answer(self, batch: Sequence[Ask]) -> list[Timing]:
        """Prompts are padded to the longest of them, and all run until the longest answer has ended."""
        import torch

        width = max(len(ask.prompt) for ask in batch)
        ids = torch.tensor([[0] * (width - len(ask.prompt)) + list(ask.prompt) for ask in batch])
        mask = torch.tensor([[0] * (width - len(ask.prompt)) + [1] * len(ask.prompt) for ask in batch])
        arrivals: list[float] = []
        started = time.perf_counter()

        def on_step(ids: Any, scores: Any, **_: Any) -> Any:
            arrivals.append(time.perf_counter() - started)
            return torch.zeros(len(ids), dtype=torch.bool)

        with torch.inference_mode():
            self._model.generate(
                ids,
                attention_mask=mask,
                max_new_tokens=max(ask.max_tokens for ask in batch),
                use_cache=self._cache,
                stopping_criteria=[on_step],
            )
        return [Timing(tuple(arrivals[: ask.max_tokens]), ask.max_tokens, len(ask.prompt)) for ask in batch]
