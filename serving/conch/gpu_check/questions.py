"""What the models are asked, how they are asked, and how alike two answers are."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conch_build.errors import ServiceError

QUESTIONS = (
    "What is gravity? Answer in one sentence.",
    "Name three colours of the rainbow.",
    "Write the numbers from one to twelve, parted by commas.",
    "Translate into French: Good morning, my friend.",
    "Erkläre in einem Satz, was eine Brücke ist.",
    "Write a Python function that adds two numbers.",
    "The quick brown fox jumps over the lazy dog. " * 40 + "What does the fox jump over?",
    "Tell me a very short story about a cat.",
)
TEXTS = ("1, 2, 3, 4,", "The capital of France is", "Once upon a time,", "def add(a, b):")
"""To be continued, without a chat's template."""
MAX_TOKENS = 48
_SECONDS = 300


@dataclass(frozen=True)
class Agreement:
    """Two greedy answers: as many tokens as they start with alike, of as many as the longer one has."""

    same: int
    tokens: int

    @property
    def share(self) -> float:
        return self.same / self.tokens if self.tokens else 1.0


def ask(url: str, question: str) -> dict[str, Any]:
    """A greedy answer of the gateway. Raises ServiceError with what it says."""
    body = {"messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": MAX_TOKENS}
    started = time.monotonic()
    with _opened(f"{url}/v1/chat/completions", body) as response:
        answer = json.loads(response.read())
    choice = answer["choices"][0]
    return {
        "text": choice["message"]["content"],
        "finish_reason": choice["finish_reason"],
        "usage": answer["usage"],
        "seconds": round(time.monotonic() - started, 3),
    }


def ask_ensemble(triton: str, text: str) -> dict[str, Any]:
    """A greedy continuation by Triton's `ensemble`: the same engine without the gateway."""
    body = {"text_input": text, "max_tokens": MAX_TOKENS, "top_k": 1, "temperature": 1.0, "stream": False}
    with _opened(f"{triton}/v2/models/ensemble/generate", body) as response:
        answer = json.loads(response.read())
    if "text_output" not in answer:
        raise ServiceError(f"has no text in its answer: {answer}", where="ensemble")
    return {"text": answer["text_output"].removeprefix(text)}


def ask_streaming(url: str, question: str) -> dict[str, Any]:
    """The same as a stream: its text, and when it came."""
    body = {"messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": MAX_TOKENS}
    started = time.monotonic()
    times: list[float] = []
    text = ""
    with _opened(f"{url}/v1/chat/completions", {**body, "stream": True}) as response:
        for line in response:
            if not line.startswith(b"data:") or line.strip() == b"data: [DONE]":
                continue
            event = json.loads(line[5:])
            if "error" in event:
                raise ServiceError(str(event["error"]))
            for choice in event.get("choices", ()):
                if part := choice["delta"].get("content"):
                    times.append(time.monotonic() - started)
                    text += part
    if not times:
        raise ServiceError("the stream had no text in it")
    gap = (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else 0.0
    return {"text": text, "ttft_seconds": round(times[0], 4), "mean_gap_seconds": round(gap, 5), "pieces": len(times)}


def agreement(first: Sequence[int], second: Sequence[int]) -> Agreement:
    """How long two answers go together: after the first token that differs, greedy ones have little in common."""
    same = 0
    for one, other in zip(first, second, strict=False):
        if one != other:
            break
        same += 1
    return Agreement(same, max(len(first), len(second)))


class TokenIds:
    """Texts as token ids of one tokenizer: the yardstick for both sides."""

    def __init__(self, folder: Path) -> None:
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    def __call__(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids


def compare(ours: Sequence[dict[str, Any]], theirs: Sequence[dict[str, Any]], ids: TokenIds) -> dict[str, Any]:
    """The answers of two engines to the same questions."""
    pairs = [agreement(ids(one["text"]), ids(other["text"])) for one, other in zip(ours, theirs, strict=True)]
    tokens = sum(pair.tokens for pair in pairs)
    return {
        "same_tokens": sum(pair.same for pair in pairs),
        "tokens": tokens,
        "share": round(sum(pair.same for pair in pairs) / tokens, 4) if tokens else 1.0,
        "equal_answers": sum(pair.same == pair.tokens for pair in pairs),
        "answers": len(pairs),
        "each": [{"same": pair.same, "tokens": pair.tokens} for pair in pairs],
    }


def _opened(url: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    try:
        return urllib.request.urlopen(request, timeout=_SECONDS)
    except urllib.error.HTTPError as error:
        said = error.read().decode("utf-8", errors="replace")
        raise ServiceError(f"answers {error.code}: {said}", where=url) from None
    except OSError as error:
        raise ServiceError(f"does not answer: {error}", where=url) from None
