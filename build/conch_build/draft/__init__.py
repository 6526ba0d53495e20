"""Draft models for speculation, made from their target. `make` has the way from checkpoint to draft.

Imports no torch until a draft is made.
"""

from conch_build.draft.answers import Answer, Generate
from conch_build.draft.make import REPORT_FILE, Recipe, check_target, make_draft
from conch_build.draft.prompts import Prompt
from conch_build.draft.report import DraftReport, StepTimes

__all__ = [
    "REPORT_FILE",
    "Answer",
    "DraftReport",
    "Generate",
    "Prompt",
    "Recipe",
    "StepTimes",
    "check_target",
    "make_draft",
]
