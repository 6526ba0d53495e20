"""Version profiles: what one release of TensorRT-LLM has, and what is wrong with commands and arguments for it.

    releases.py     the two profiles, and which of them a plan is for
    profile.py      what a profile holds and can be asked
    lacks.py        what a plan asks for that its profile has not
    presence.py     how sources on both sides of a release say what is in it
    flags.py        command lines (commands.json); build_rules.py: what flags of trtllm-build say of each other
    arguments.py    the LLM API's arguments (llm_args.json), their types (types.py), ways to speculate (decoding.py)
                    argument_rules.py, speculation_rules.py: what they say of each other

Runs nothing, and needs neither a GPU nor TensorRT-LLM.
"""

from conch_build.profiles.lacks import Lack, profile_violations
from conch_build.profiles.problem import Problem
from conch_build.profiles.profile import Container, Profile
from conch_build.profiles.releases import PROFILES, container_of, profile_for, profile_of, release_in

__all__ = [
    "PROFILES",
    "Container",
    "Lack",
    "Problem",
    "Profile",
    "container_of",
    "profile_for",
    "profile_of",
    "profile_violations",
    "release_in",
]
