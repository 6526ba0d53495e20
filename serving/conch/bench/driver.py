"""A peer that is a library, driven in its own process and environment: `python driver.py PEER MODEL OPTIONS`.

Reads a job a line (JSON: `prompts`, `max_tokens`, `concurrency`) and answers each with a line: `seconds`, and for each
request its `arrivals`, `tokens` and `prompt_tokens`. It runs where Conch is not installed: the standard library and the
peer are all that it knows.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any

Requests = list[dict[str, Any]]
Run = Callable[[list[list[int]], int, int], Requests]


def openvino_genai(model: str, options: dict[str, Any]) -> Run:
    """Continuous batching of `options["scheduler"]`; the caller's loop is the peer's own `step`."""
    import numpy as np
    import openvino as ov
    import openvino_genai as genai

    scheduler = genai.SchedulerConfig()
    for name, value in options["scheduler"].items():
        setattr(scheduler, name, value)
    pipeline = genai.ContinuousBatchingPipeline(model, scheduler, "CPU", options["properties"])
    numbers = iter(range(1 << 62))

    def run(prompts: list[list[int]], max_tokens: int, concurrency: int) -> Requests:
        settings = genai.GenerationConfig(max_new_tokens=max_tokens, ignore_eos=True, do_sample=False)
        waiting: deque[list[int]] = deque(prompts)
        done: Requests = []
        running: list[tuple[Any, float, dict[str, Any]]] = []
        while waiting or running:
            while waiting and len(running) < concurrency:
                prompt = waiting.popleft()
                request: dict[str, Any] = {"arrivals": [], "tokens": 0, "prompt_tokens": len(prompt)}
                ids = ov.Tensor(np.array([prompt], dtype=np.int64))
                running.append((pipeline.add_request(next(numbers), ids, settings), time.perf_counter(), request))
            pipeline.step()
            now = time.perf_counter()
            for handle, started, request in running:
                if handle.can_read():
                    request["arrivals"].append(now - started)
                    request["tokens"] += sum(len(output.generated_ids) for output in handle.read().values())
            ended = [entry for entry in running if entry[2]["tokens"] >= max_tokens]
            done += [request for _, _, request in ended]
            running = [entry for entry in running if entry[2]["tokens"] < max_tokens]
        while pipeline.has_non_finished_requests():
            pipeline.step()
        return done

    return run


def llama_cpp(model: str, options: dict[str, Any]) -> Run:
    """One stream through the C interface, picking the best token; what the last prompt shares is kept."""
    import llama_cpp as llama

    llama.llama_backend_init()
    loaded = llama.llama_model_load_from_file(model.encode(), llama.llama_model_default_params())
    settings = llama.llama_context_default_params()
    for name, value in options["context"].items():
        setattr(settings, name, value)
    context = llama.llama_init_from_model(loaded, settings)
    memory = llama.llama_get_memory(context)
    greedy = llama.llama_sampler_init_greedy()
    kept: list[int] = []

    def decode(ids: list[int]) -> int:
        for start in range(0, len(ids), settings.n_batch):
            part = ids[start : start + settings.n_batch]
            tokens = (llama.llama_token * len(part))(*part)  # the batch only points to it
            if llama.llama_decode(context, llama.llama_batch_get_one(tokens, len(part))):
                raise RuntimeError("llama_decode failed")
        kept.extend(ids)
        return int(llama.llama_sampler_sample(greedy, context, -1))

    def answer(prompt: list[int], max_tokens: int) -> dict[str, Any]:
        started = time.perf_counter()
        common = 0
        while common < min(len(kept), len(prompt) - 1) and kept[common] == prompt[common]:
            common += 1
        llama.llama_memory_seq_rm(memory, 0, common, -1)
        del kept[common:]
        token = decode(prompt[common:])
        arrivals = [time.perf_counter() - started]
        while len(arrivals) < max_tokens:
            token = decode([token])
            arrivals.append(time.perf_counter() - started)
        return {"arrivals": arrivals, "tokens": max_tokens, "prompt_tokens": len(prompt)}

    def run(prompts: list[list[int]], max_tokens: int, concurrency: int) -> Requests:
        assert concurrency == 1
        return [answer(prompt, max_tokens) for prompt in prompts]

    return run


PEERS: dict[str, Callable[[str, dict[str, Any]], Run]] = {"openvino-genai": openvino_genai, "llama.cpp": llama_cpp}


def main() -> None:
    # What the peer prints must not come between the answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    peer, model, options = sys.argv[1:]
    run = PEERS[peer](model, json.loads(options))
    print(json.dumps({"ready": True}), file=answers)
    for line in sys.stdin:
        job = json.loads(line)
        started = time.perf_counter()
        requests = run(job["prompts"], job["max_tokens"], job["concurrency"])
        print(json.dumps({"seconds": time.perf_counter() - started, "requests": requests}), file=answers)


if __name__ == "__main__":
    main()
