"""Calibration samples: token ids that a model is shown so that the ranges of its activations become known.

From built-in texts, a `.txt` or `.jsonl` file, or the model's own generations. Knows nothing of quantization.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from conch_build.console import Progress
from conch_build.errors import InputError
from conch_build.plan import Calibration

BUILTIN_TEXTS = Path(__file__).with_name("calibration_texts.txt")
GENERATION_BATCH = 16
RECORD_FIX = 'Each line must be {"text": "..."} or {"messages": [{"role": "user", "content": "..."}, ...]}.'
_SEPARATOR = "\n%%\n"


def calibration_samples(settings: Calibration, tokenizer: Any, model: Any, *, seed: int = 0) -> list[Any]:
    """Up to `settings.samples` int64 tensors `[tokens]` of at most `max_length` tokens each, two at least.

    `tokenizer` and `model` are transformers' own; the model is used only by `self`. Fewer samples come back
    when the source holds fewer texts. Raises InputError when the file does not read.
    """
    import torch

    max_length = min(settings.max_length, model.config.max_position_embeddings)
    if settings.data == "self":
        return _own_generations(settings.samples, max_length, tokenizer, model, seed)
    samples: list[Any] = []
    for text in texts(settings.data, tokenizer):
        ids = tokenizer(text, truncation=True, max_length=max_length)["input_ids"]
        if len(ids) > 1:
            samples.append(torch.tensor(ids, dtype=torch.int64))
        if len(samples) == settings.samples:
            break
    if not samples:
        raise InputError("holds no calibration text", where=settings.data, fix="Put text in it, or use `builtin`.")
    return samples


def builtin_texts() -> list[str]:
    """Short texts of many kinds: prose, chat, code, lists, numbers and a dozen languages."""
    return BUILTIN_TEXTS.read_text(encoding="utf-8").rstrip("\n").split(_SEPARATOR)


def texts(data: str, tokenizer: Any) -> Iterator[str]:
    """The texts of `builtin` or of a file; `tokenizer` writes chat messages as text. Raises InputError."""
    if data == "builtin":
        yield from builtin_texts()
        return
    path = Path(data)
    try:
        content = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InputError(f"cannot be read: {reason}", where=data, fix="Correct the path or the file.") from None
    if path.suffix == ".jsonl":
        for number, line in enumerate(content.split("\n"), 1):  # JSON may hold other line separators as they are
            if line.strip():
                yield _record_text(line, f"{data}, line {number}", tokenizer)
    else:
        yield from split_texts(content)


def split_texts(content: str) -> list[str]:
    """The texts of a `.txt` file: its paragraphs, or its lines where no blank line parts them."""
    paragraphs = [part.strip() for part in content.split("\n\n") if part.strip()]
    return paragraphs if len(paragraphs) > 1 else [line for line in content.splitlines() if line.strip()]


def parse_record(line: str) -> str | list[Any]:
    """The text or the chat messages of one `.jsonl` line. Raises ValueError saying what is wrong with it."""
    try:
        record = json.loads(line)
    except (json.JSONDecodeError, RecursionError):
        raise ValueError("is not JSON") from None
    fields = record if isinstance(record, dict) else {}
    text, messages = fields.get("text"), fields.get("messages")
    if isinstance(text, str):
        return text
    if isinstance(messages, list) and messages:
        return messages
    raise ValueError("has neither `text` nor `messages`")


def _record_text(line: str, where: str, tokenizer: Any) -> str:
    try:
        record = parse_record(line)
    except ValueError as error:
        raise InputError(str(error), where=where, fix=RECORD_FIX) from None
    if isinstance(record, str):
        return record
    try:
        return str(tokenizer.apply_chat_template(record, tokenize=False))
    except Exception as error:  # a template may raise anything it likes
        raise InputError(f"the chat template refuses these messages: {error}", where=where, fix=RECORD_FIX) from None


def _own_generations(count: int, max_length: int, tokenizer: Any, model: Any, seed: int) -> list[Any]:
    """The model's own words: a random first token, the rest sampled (arXiv 2305.17888, section 2.1)."""
    import torch

    torch.manual_seed(seed)
    first_tokens = torch.randint(0, len(tokenizer), (count, 1))
    end_ids = torch.tensor(_end_ids(model), dtype=torch.int64)
    samples: list[Any] = []
    with Progress("generating calibration text", count) as progress, torch.inference_mode():
        for prompts in first_tokens.split(GENERATION_BATCH):
            rows = model.generate(
                prompts,
                attention_mask=torch.ones_like(prompts),
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                max_length=max_length,
                # What follows a row's end is cut off below.
                pad_token_id=int(end_ids[0]) if len(end_ids) else 0,
            )
            for row in rows:
                ends = torch.isin(row[1:], end_ids).nonzero()
                samples.append(row[: int(ends[0]) + 2].clone() if len(ends) else row.clone())
            progress.advance(len(rows))
    return samples


def _end_ids(model: Any) -> list[int]:
    named = model.generation_config.eos_token_id
    return [] if named is None else list(named) if isinstance(named, list) else [named]
