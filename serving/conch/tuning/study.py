"""Which setting is tried next, what is given up early, and what is remembered: a study of Optuna in a file.

The same question to the same machine finds the study that was left, whatever ended it. Knows nothing of servers:
whoever asks hands in how one setting is measured.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conch.tuning.climb import Climb, Row, excess, tokens_per_second
from conch.tuning.space import Setting, Value, Values, own_values
from conch_build.disk import flock
from conch_build.errors import CheckError, InputError, ServiceError
from conch_build.plan import Slo

OnLevel = Callable[[int, Row], bool]
Measure = Callable[[Values, OnLevel], Climb]
Say = Callable[[str], None]
_BEFORE_PRUNING = 4
"""Trials to see before one is given up for being behind the others."""


@dataclass(frozen=True)
class Tried:
    number: int
    values: dict[str, Value]
    outcome: str
    """kept, broken (the SLO), behind (given up), refused (by a check) or failed."""
    row: Row | None
    """The best level that keeps the SLO, else the first one."""
    excess: float | None
    """Of that row."""

    def as_dict(self) -> dict[str, Any]:
        return {"number": self.number, "outcome": self.outcome, "settings": self.values, "figures": self.row}


class Study:
    """`slo`: the plan's, which sets at least one limit."""

    def __init__(self, path: Path, space: list[Setting], slo: Slo, seed: int) -> None:
        import optuna
        from optuna.storages.journal import JournalFileBackend

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._space, self._slo = space, slo
        self._study = optuna.create_study(
            study_name="tune",
            storage=optuna.storages.JournalStorage(JournalFileBackend(str(path))),
            direction="maximize",
            sampler=optuna.samplers.TPESampler(seed=seed, n_startup_trials=6),
            pruner=optuna.pruners.MedianPruner(n_startup_trials=_BEFORE_PRUNING),
            load_if_exists=True,
        )
        for left in self._study.get_trials(states=(optuna.trial.TrialState.RUNNING,)):
            self._study.tell(left.number, state=optuna.trial.TrialState.FAIL)  # its process is gone
        waiting = self._study.get_trials(states=(optuna.trial.TrialState.WAITING,))
        if not waiting and not any(one.values == own_values(space) for one in self.tried()):
            self._study.enqueue_trial(own_values(space))

    def search(self, measure: Measure, trials: int, seconds: float, say: Say) -> None:
        """Until so many were tried, those of earlier runs included, or the time is up; the plan's own come first.

        Raises what measuring the plan's own settings raises.
        """
        until = time.monotonic() + seconds
        while self._measured() < trials and (not self.tried() or time.monotonic() < until):
            self._one(measure)
            one = self.tried()[-1]
            row = one.row
            figures = "" if row is None else f" {row['tokens_per_second']:.0f} tok/s, {row['load']}"
            say(f"trial {one.number + 1}  {one.outcome}{figures}  {told(self._space, one.values)}")

    def tried(self) -> list[Tried]:
        """In order; what was cut off is left out."""
        return [
            Tried(trial.number, dict(trial.params), *(trial.user_attrs[name] for name in ("outcome", "row", "excess")))
            for trial in self._study.get_trials(deepcopy=False)
            if "outcome" in trial.user_attrs
        ]

    def _measured(self) -> int:
        return sum(one.outcome != "refused" for one in self.tried())

    def _one(self, measure: Measure) -> None:
        from optuna.trial import TrialState

        trial = self._study.ask()
        values: dict[str, Any] = {s.name: trial.suggest_categorical(s.name, s.choices) for s in self._space}
        behind = False

        def on_level(number: int, row: Row) -> bool:
            nonlocal behind
            trial.report(self._worth(row), number)
            behind = trial.should_prune()
            return not behind

        outcome, row = "failed", None
        try:
            climb = measure(values, on_level)
        except (CheckError, ServiceError) as error:
            if values == own_values(self._space):
                self._study.tell(trial, state=TrialState.FAIL)
                raise
            outcome = "refused" if isinstance(error, CheckError) else "failed"
        else:
            outcome = "behind" if behind else "broken" if climb.best is None else "kept"
            row = climb.best or climb.rows[0]
        trial.set_user_attr("row", row)
        trial.set_user_attr("excess", None if row is None else excess(row, self._slo))
        trial.set_user_attr("outcome", outcome)
        if row is None or behind:
            self._study.tell(trial, state=TrialState.PRUNED)
        else:
            self._study.tell(trial, self._worth(row))

    def _worth(self, row: Row) -> float:
        """Tokens a second; below 0 the further the SLO is broken, so that the search finds its way there."""
        return tokens_per_second(row) if row["slo_met"] else -max(excess(row, self._slo), 1.0)


def best_of(tried: list[Tried], slo: Slo) -> Tried:
    """The most tokens a second within the SLO. Raises InputError with the nearest, where none keeps it."""
    kept = [one for one in tried if one.outcome == "kept"]
    if kept:
        return max(kept, key=lambda one: tokens_per_second(one.row or {}))
    measured = [one for one in tried if one.row is not None]
    nearest = min(measured, key=lambda one: one.excess or 0.0)
    row = nearest.row or {}
    wanted = {"ttft_p95": ("TTFT p95", "ttft_p95_ms"), "itl_p95": ("time of a token p95", "tpot_p95_ms")}
    reached = ", ".join(
        f"{name} {row[figure]:.1f} ms (asked: {1e3 * limit:g} ms)"
        for key, (name, figure) in wanted.items()
        if (limit := getattr(slo, key)) is not None
    )
    raise InputError(
        f"none of {len(measured)} settings keeps it, even at {row['load']}; the nearest reached {reached}",
        where="slo",
        fix="Allow more, ask for shorter prompts, take a smaller or quantized model, or a faster machine.",
    )


def told(space: list[Setting], values: Values) -> str:
    """What differs from the plan, in one line."""
    other = [f"{s.name.removeprefix('engine.')} {values[s.name]}" for s in space if values[s.name] != s.own]
    return ", ".join(other) or "the plan's own settings"


def folder_of(home: Path, name: str, question: dict[str, Any]) -> Path:
    """Where the study of a question is kept; `question` holds all that decides its answers."""
    digest = hashlib.sha256(json.dumps(question, sort_keys=True, default=str).encode()).hexdigest()
    return home / "tune" / f"{name}-{digest[:12]}"


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Raises InputError while another process is at the same study."""
    folder.mkdir(parents=True, exist_ok=True)
    with flock(folder / "lock", fcntl.LOCK_EX | fcntl.LOCK_NB) as held:
        if not held:
            raise InputError("another `conch tune` is at this study", where=str(folder), fix="Wait for it.")
        yield
