"""An evaluation: what is asked, of whom, and what is made of it. Is handed its subjects: knows no engine, no server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from conch_build.calibration import parse_record, split_texts
from conch_build.errors import InputError
from conch_build.plan_quality import Quality
from conch_build.quality import answers as metrics
from conch_build.quality.figures import Figures, Sample, TaskFigures
from conch_build.quality.rows import Rows, compare
from conch_build.quality.tasks import BUILTIN, Task, load_tasks

BUILTIN_TEXTS = Path(__file__).with_name("texts.txt")
"""None of them is among those that calibration shows a model."""
SHOWN = 16
"""Tasks whose answers are kept side by side."""


@dataclass(frozen=True)
class Work:
    """What every subject is asked."""

    texts: tuple[str, ...]
    """Empty: only answers are judged."""
    max_length: int
    """Tokens of each text that count."""
    tasks: tuple[Task, ...]


class Subject(Protocol):
    """A model that can be asked."""

    def ids(self, text: str) -> list[int]:
        """The tokens of a text, as many as it can take."""

    def rows(self, texts: Sequence[Sequence[int]]) -> Iterator[Rows]:
        """The positions of each text, given as tokens, in turn: all of its tokens but the first, in chunks of CHUNK."""

    def answers(self, tasks: Sequence[Task]) -> list[str]:
        """A greedy answer to each task."""


@dataclass(frozen=True)
class Recorded:
    """A subject that was asked before: for those that cannot run at the same time."""

    cut: Mapping[str, list[int]]
    positions: Sequence[Rows]
    said: Sequence[str]

    @classmethod
    def of(cls, subject: Subject, work: Work) -> Recorded:
        cut = {text: subject.ids(text)[: work.max_length] for text in work.texts}
        return cls(cut, list(subject.rows([cut[text] for text in work.texts])), subject.answers(work.tasks))

    def ids(self, text: str) -> list[int]:
        return self.cut[text]

    def rows(self, texts: Sequence[Sequence[int]]) -> Iterator[Rows]:
        yield from self.positions

    def answers(self, tasks: Sequence[Task]) -> list[str]:
        return list(self.said)


def work_of(quality: Quality) -> Work:
    """The texts and tasks that a plan names. Raises InputError for a file that does not read or holds none."""
    found = builtin_texts() if quality.text == "builtin" else _texts_in(quality.text)
    if not found:
        raise InputError("holds no text", where=quality.text, fix="Put text in it, or use `builtin`.")
    tasks = BUILTIN if quality.tasks is None else load_tasks(quality.tasks)
    return Work(tuple(found[: quality.samples]), quality.max_length, tasks)


def judge(baseline: Subject | None, build: Subject, work: Work) -> Figures:
    """Ask both the same, and compare."""
    text = None
    if work.texts:
        cut = [_cut_alike(baseline, build, text)[: work.max_length] for text in work.texts]
        text = compare(None if baseline is None else baseline.rows(cut), build.rows(cut))
    own = _cut(build.answers(work.tasks), work.tasks)
    theirs = None if baseline is None else _cut(baseline.answers(work.tasks), work.tasks)
    return Figures(text=text, **answer_figures(work.tasks, own, theirs))


def _cut_alike(baseline: Subject | None, build: Subject, text: str) -> list[int]:
    """The tokens of a text, which both are asked. Raises InputError unless they cut it alike, but for a start token."""
    own = build.ids(text)
    if baseline is None:
        return own
    ids = baseline.ids(text)
    shared = min(len(own), len(ids)) - 1
    if not any(own[a:][:shared] == ids[b:][:shared] for a, b in ((0, 0), (1, 0), (0, 1))):
        raise InputError(
            "the two models cut the text into different tokens, so that their predictions cannot be compared",
            where="the baseline",
            fix="Compare a build with a model of the same tokenizer, or answers alone: --no-text.",
        )
    return ids


def answer_figures(tasks: Sequence[Task], own: Sequence[str], theirs: Sequence[str] | None) -> dict[str, Any]:
    """`tasks`, `baseline_tasks` and `samples` of the figures, from the answers of a build and of its baseline."""
    others: Sequence[str | None] = [None] * len(own) if theirs is None else theirs
    shown = zip(tasks, own, others, strict=True)
    return {
        "tasks": _judged(tasks, own),
        "baseline_tasks": None if theirs is None else _judged(tasks, theirs),
        "samples": tuple(
            Sample(question=task.question, right=task.answers, answer=answer, baseline=other)
            for task, answer, other in islice(shown, SHOWN)
        ),
    }


def _cut(answers: Sequence[str], tasks: Sequence[Task]) -> list[str]:
    """The answers up to the first stop of their tasks."""
    found = []
    for answer, task in zip(answers, tasks, strict=True):
        ends = [end for stop in task.stop if (end := answer.find(stop)) >= 0]
        found.append(answer[: min(ends, default=len(answer))])
    return found


def _judged(tasks: Sequence[Task], answers: Sequence[str]) -> TaskFigures:
    known = [(answer, task.answers) for task, answer in zip(tasks, answers, strict=True) if task.answers]
    guided = [(answer, task) for task, answer in zip(tasks, answers, strict=True) if task.schema_ is not None]
    found: dict[str, float] = {}
    if known:
        given, right = [answer for answer, _ in known], [answers for _, answers in known]
        for name in ("exact_match", "bleu", "rouge_l", *(["similarity"] if metrics.can_embed() else [])):
            found[name] = getattr(metrics, name)(given, right)
    if guided:
        found["valid"] = metrics.valid_share([answer for answer, _ in guided], [task for _, task in guided])
    return TaskFigures(tasks=len(tasks), **found)


def builtin_texts() -> list[str]:
    return BUILTIN_TEXTS.read_text(encoding="utf-8").rstrip("\n").split("\n%%\n")


def _texts_in(path: str) -> list[str]:
    """The texts of a `.txt` or `.jsonl` file. Raises InputError."""
    try:
        content = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InputError(f"cannot be read: {reason}", where=path, fix="Correct the path or the file.") from None
    if Path(path).suffix != ".jsonl":
        return split_texts(content)
    lines = ((number, line) for number, line in enumerate(content.split("\n"), 1) if line.strip())
    return [_text_of(line, f"{path}, line {number}") for number, line in lines]


def _text_of(line: str, where: str) -> str:
    fix = 'Each line must be {"text": "..."}.'
    try:
        record = parse_record(line)
    except ValueError as error:
        raise InputError(str(error), where=where, fix=fix) from None
    if isinstance(record, str):
        return record
    raise InputError("holds messages, and perplexity is of text", where=where, fix=fix)
