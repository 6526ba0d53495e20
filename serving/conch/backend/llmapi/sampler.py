"""What the sampler of a TensorRT-LLM release can do. It ignores in silence what it cannot, so that is known here.

Releases up to 1.3.0rc25 have two samplers: the TorchSampler, which every plan gets that does not ask otherwise, and the
TRTLLMSampler. With an EAGLE-3 head or MTP layers in the model's own graph there is neither.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from conch_build.errors import RequestError, UnsupportedError

TRTLLM_SAMPLER = "TRTLLMSampler"
_IN_GRAPH = ("eagle", "eagle3", "mtp")
_SINCE = {"penalties": (1, 3, 0, 24), "min_p": (1, 3, 0, 26), "seed": (1, 4, 0, 0)}
"""Feature -> a release candidate in which the TorchSampler surely has it; some may have had it a little earlier."""


@dataclass(frozen=True)
class Sampler:
    """`choice`: whether tokens can be drawn at all, or only the best be taken."""

    name: str
    choice: bool = True
    penalties: bool = False
    seed: bool = False
    min_p: bool = False
    bias: bool = True
    min_tokens: bool = True
    log_probs: bool = True
    top_log_probs: bool = True
    replaceable: bool = False
    """Whether a plan could have asked for the TRTLLMSampler instead."""

    def refuse(self, what: str, param: str) -> UnsupportedError:
        """The error of a request that asks for what is not there."""
        fix = "Leave it out."
        if self.replaceable and param in _OF_TRTLLM_SAMPLER:
            fix = f"Leave it out, or build with `engine.llm_args: {{sampler_type: {TRTLLM_SAMPLER}}}`."
        return UnsupportedError(f"`{param}`: the {self.name} of this release has no {what}", param=param, fix=fix)


_OF_TRTLLM_SAMPLER = ("repetition_penalty", "presence_penalty", "frequency_penalty", "seed", "conch_min_p")


def sampler_of(args: Mapping[str, Any], release: str) -> Sampler:
    """The sampler that these arguments of the LLM API choose in this release."""
    speculation = args.get("speculative_config") or {}
    if _in_graph(speculation):
        return Sampler(
            "sampling inside the speculation's graph",
            choice=bool(speculation.get("allow_advanced_sampling")),
            bias=False,
            min_tokens=False,
            log_probs=False,
            top_log_probs=False,
        )
    if args.get("sampler_type") == TRTLLM_SAMPLER:
        return Sampler(TRTLLM_SAMPLER, penalties=True, seed=True, min_p=True, top_log_probs=False)
    features = {name: release_number(release) >= since for name, since in _SINCE.items()}
    return Sampler("TorchSampler", **features, replaceable=not speculation and not features["penalties"])


def release_number(release: str) -> tuple[int, int, int, int]:
    """`1.3.0rc21` as (1, 3, 0, 21); a final release comes after its candidates. Raises RequestError for no release."""
    found = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?(?:rc(\d+))?", release)
    if found is None:
        raise RequestError(f"{release!r} is no release of TensorRT-LLM")
    major, minor, patch, candidate = found.groups()
    return int(major), int(minor), int(patch or 0), 10_000 if candidate is None else int(candidate)


def _in_graph(speculation: Mapping[str, Any]) -> bool:
    """Whether guesses are made in the model's own graph, as is the default of these methods."""
    method = str(speculation.get("decoding_type", "")).lower()
    one = speculation.get("mtp_eagle_one_model" if method == "mtp" else "eagle3_one_model", True)
    return method in _IN_GRAPH and one is not False
