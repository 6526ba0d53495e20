"""The CPU engine: in-flight batching over a runner that computes steps. See `core` for the life of a request.

Knows nothing of Triton, HTTP or text.
"""

from conch.engine.batch import Rows, Runner, Slot
from conch.engine.config import EngineConfig
from conch.engine.core import Engine
from conch.engine.request import FINISH_REASONS, FinishReason, Output, PromptLogProbs, Request, SamplingParams, Usage
from conch.engine.state import KvState
from conch.engine.stats import EngineStats

__all__ = [
    "FINISH_REASONS",
    "Engine",
    "EngineConfig",
    "EngineStats",
    "FinishReason",
    "KvState",
    "Output",
    "PromptLogProbs",
    "Request",
    "Rows",
    "Runner",
    "SamplingParams",
    "Slot",
    "Usage",
]
