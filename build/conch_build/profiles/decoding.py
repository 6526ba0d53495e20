"""Ways to speculate that the LLM API knows: how each release spells them, their backends, and what they must have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from conch_build.profiles.presence import LATER, NEIGHBOURS, SNAPSHOTS

BASE = "SpeculativeBase"
"""Object with the fields that all ways have."""


@dataclass(frozen=True)
class Kind:
    part: str
    """Object of `llm_args.json` with its own fields."""
    spellings: Mapping[str, str]
    """Sources of a release -> `decoding_type`; without those of releases that do not have it."""
    backends: tuple[str, ...] = ("pytorch",)
    needs_length: bool = False
    needs_checkpoint: bool = False
    without_overlap: bool = False
    """Upstream runs it without the overlap scheduler."""
    in_yaml: bool = True


def _same(spelling: str) -> dict[str, str]:
    return dict.fromkeys(SNAPSHOTS.values(), spelling)


_ENGINES = ("tensorrt",)

KINDS = (
    Kind(
        "DraftTargetConfig",
        {NEIGHBOURS: "DraftTarget", LATER: "Draft_Target"},
        needs_length=True,
        needs_checkpoint=True,
        without_overlap=True,
    ),
    Kind(
        "EagleConfig",
        {NEIGHBOURS: "Eagle", LATER: "Eagle3"},
        backends=("pytorch", "tensorrt"),
        needs_length=True,
        needs_checkpoint=True,
    ),
    Kind("MTPConfig", _same("MTP")),
    Kind("NGramConfig", _same("NGram"), needs_length=True, without_overlap=True),
    Kind("AutoConfig", _same("AUTO")),
    Kind("SaveStateConfig", _same("SaveState")),
    Kind("MedusaConfig", {NEIGHBOURS: "Medusa"}, backends=_ENGINES, needs_length=True),
    Kind("LookaheadConfig", {NEIGHBOURS: "Lookahead"}, backends=_ENGINES),
    Kind("PARDConfig", {LATER: "PARD"}, needs_checkpoint=True),
    Kind("SAConfig", {LATER: "SA"}, needs_length=True),
    Kind("DFlashConfig", {LATER: "DFlash"}),
    Kind("DSparkConfig", {LATER: "DSpark"}),
    Kind("UserProvidedConfig", {NEIGHBOURS: "UserProvided", LATER: "User_Provided"}, in_yaml=False),
)


def kinds_of(snapshots: str) -> Mapping[str, Kind]:
    """`decoding_type` -> what it stands for, in a release."""
    return {kind.spellings[snapshots]: kind for kind in KINDS if snapshots in kind.spellings}
