"""How much quality a build has lost, and the gate that stops one that has lost too much.

    plan_quality     the plan's part: text, tasks, limits
    tasks, answers   a task file; exact match, BLEU, ROUGE, similarity, validity of answers
    formulas, rows   perplexity, agreement and divergence of two models' next-token distributions
    figures          what was found, and which limits it breaks
    judge            an evaluation of subjects that somebody hands in
    gate             the stage of a build

Runs no model: `conch` has the subjects.
"""

from conch_build.quality.figures import Figures, TaskFigures, TextFigures
from conch_build.quality.judge import Recorded, Subject, Work, judge, work_of
from conch_build.quality.rows import CHUNK, TOP, FullRows, Rows, TopRows
from conch_build.quality.tasks import Task

__all__ = [
    "CHUNK",
    "TOP",
    "Figures",
    "FullRows",
    "Recorded",
    "Rows",
    "Subject",
    "Task",
    "TaskFigures",
    "TextFigures",
    "TopRows",
    "Work",
    "judge",
    "work_of",
]
