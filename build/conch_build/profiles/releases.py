"""The releases that Conch knows, and which of them a plan is for."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import re

from conch_build.errors import PlanError
from conch_build.plan import Plan
from conch_build.profiles.presence import SNAPSHOTS
from conch_build.profiles.profile import Container, Profile

DEFAULT = "1.2.1"
LATER = "1.3.0rc21"
"""The first release without engines; its profile stands for all after it."""

WHERE = "target.tensorrt_llm"

_TRITON = "nvcr.io/nvidia/tritonserver:{}-trtllm-python-py3"
_RELEASE = "nvcr.io/nvidia/tensorrt-llm/release:{}"
_TORCH = "2.10.0a0+b4e4ee81d3.nv25.12"

_IN_BOTH = frozenset({"trtllm-bench", "trtllm-eval", "trtllm-llmapi-launch", "trtllm-serve mm_embedding_serve"})

OLDER_CONTAINERS: dict[str, str] = {
    **{_TRITON.format("26.03"): "1.2.0"},
    **dict.fromkeys((_TRITON.format(month) for month in ("26.02", "26.01", "25.12")), "1.1.0"),
    _TRITON.format("25.11"): "1.0.3.2510",
    **dict.fromkeys((_TRITON.format(month) for month in ("25.10", "25.09")), "1.0.0"),
    _TRITON.format("25.08"): "0.21.0",
    **dict.fromkeys((_TRITON.format(month) for month in ("25.07", "25.06")), "0.20.0"),
    _TRITON.format("25.05"): "0.19.0",
    _TRITON.format("25.04"): "0.18.2",
    _TRITON.format("25.03"): "0.18.0",
    _TRITON.format("25.02"): "0.17.0.post1",
    _TRITON.format("25.01"): "0.17.0",
}
"""Images of Triton with releases that no profile is for -> the release in them."""


def _triton(month: str) -> Container:
    return Container(
        _TRITON.format(month), "1.2.1", True, "10.14.1.48", "13.1.0.036", "590.44.01", python="3.12.3", torch=_TORCH
    )


_FIRST = Profile(
    name="1.2.1",
    snapshots=SNAPSHOTS["1.2.1"],
    backends=("tensorrt", "pytorch"),
    containers=(
        *map(_triton, ("26.07", "26.06", "26.05", "26.04")),
        Container(_RELEASE.format("1.2.1"), "1.2.1", False),
    ),
    modelopt="0.37.0",
    modelopt_script="examples/llm_ptq/hf_ptq.py",
    qformats={"fp8": "fp8", "int4_awq": "int4_awq", "nvfp4": "nvfp4", "w4a8_awq": "w4a8_awq"},
    kv_qformats={"fp8": "fp8", "nvfp4": "nvfp4"},
    decoding_types={
        "draft": "DraftTarget",
        "ngram": "NGram",
        "eagle3": "Eagle",
        "mtp": "MTP",
        "medusa": "Medusa",
        "lookahead": "Lookahead",
    },
    commands=_IN_BOTH | {"trtllm-refit", "trtllm-prune"},
)

_SECOND = Profile(
    name=LATER,
    snapshots=SNAPSHOTS[LATER],
    backends=("pytorch",),
    containers=(Container(_RELEASE.format(LATER), LATER, False, python="3.12"),),
    modelopt="0.37.0",
    modelopt_script="examples/llm_ptq/hf_ptq.py",
    qformats=_FIRST.qformats,
    kv_qformats=_FIRST.kv_qformats,
    decoding_types={"draft": "Draft_Target", "ngram": "NGram", "eagle3": "Eagle3", "mtp": "MTP"},
    commands=_IN_BOTH,
)

PROFILES: dict[str, Profile] = {profile.name: profile for profile in (_FIRST, _SECOND)}

_WITH_MODELOPT_047 = {
    "modelopt": "0.47.0",
    "modelopt_script": "examples/hf_ptq/hf_ptq.py",
    "qformats": {"fp8": "fp8", "int4_awq": "int4_awq", "nvfp4": "nvfp4", "w4a8_awq": "w4a8_awq_beta"},
}
"""From 1.3.0rc24 on no release of ModelOpt is prescribed, and the newest has other names."""

_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)(?:rc(\d+))?(?:\.post\d+)?(?:\+.*)?")


def profile_for(plan: Plan) -> Profile:
    """The profile of the release that the plan names, that is installed, or of 1.2.1.

    Raises PlanError for a release that is not known.
    """
    asked = plan.target.tensorrt_llm
    return profile_of((installed() or DEFAULT) if asked == "auto" else asked)


def installed() -> str | None:
    """The release of TensorRT-LLM in this environment."""
    try:
        return importlib.metadata.version("tensorrt_llm")
    except importlib.metadata.PackageNotFoundError:
        return None


def profile_of(release: str) -> Profile:
    """A profile for a release by its number. Raises PlanError for one that is not known."""
    if release in PROFILES:
        return PROFILES[release]
    if _number(release) < _number(LATER):
        raise PlanError(
            f"TensorRT-LLM {release} is not known: {DEFAULT} is, and {LATER} with all that come after it",
            where=WHERE,
            fix=f"Set it to {DEFAULT}, the last stable release with engines, or to {LATER} or later.",
        )
    later = dataclasses.replace(
        PROFILES[LATER],
        name=release,
        containers=(Container(_RELEASE.format(release), release, False, python="3.12"),),
    )
    if _number(release) >= _number("1.3.0rc24"):
        return dataclasses.replace(later, **_WITH_MODELOPT_047)  # type: ignore[arg-type]
    return later


def release_in(container: str) -> str | None:
    """The release of TensorRT-LLM in one of NVIDIA's images; None for an image that is not known."""
    known = {image.tag: image.tensorrt_llm for profile in PROFILES.values() for image in profile.containers}
    if container.startswith(_RELEASE.format("")):
        return container.rpartition(":")[2]
    return {**OLDER_CONTAINERS, **known}.get(container)


def _number(release: str) -> tuple[int, int, int, float]:
    """Order of releases; a final one comes after its candidates."""
    found = _VERSION.fullmatch(release)
    if found is None:
        raise PlanError(f"{release!r} is not the number of a release", where=WHERE, fix=f"Write it as {DEFAULT}.")
    major, minor, patch, candidate = found.groups()
    return int(major), int(minor), int(patch), float(candidate) if candidate else float("inf")


def container_of(plan: Plan) -> str:
    """The image that builds the plan's engine and serves it: an engine runs in no other. Raises PlanError."""
    return profile_for(plan).container if plan.target.container == "auto" else plan.target.container
