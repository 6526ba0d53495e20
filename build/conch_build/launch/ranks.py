"""The script that each rank of an engine over several nodes runs: the one that clients talk to, or one behind it."""

from __future__ import annotations

import shlex

from conch_build.launch.arrangement import Arrangement
from conch_build.launch.commands import LLMAPI_LAUNCH
from conch_build.launch.server import ServerFlags


def rank_script(flags: ServerFlags, arrangement: Arrangement, rank: str, *variables: str) -> str:
    """`rank`: the shell's variable with the rank's number, as `${SLURM_PROCID}`; `variables`: others in the flags."""
    prefix, known = f"prefix{rank}_", (rank, *variables)
    leader = _shell(flags.argv(prefix), known)
    if arrangement.mode == "llmapi":  # its launcher turns every other rank into a worker
        return f"#!/bin/sh\nexec {LLMAPI_LAUNCH} {leader}\n"
    behind = _shell(flags.argv(prefix, arrangement.loads), known)
    return f'#!/bin/sh\nif [ "{rank}" = 0 ]; then\n  exec {leader}\nfi\nexec {behind}\n'


def _shell(argv: tuple[str, ...], variables: tuple[str, ...]) -> str:
    """The words for a shell, which fills in the variables and nothing else."""
    words = (f'"{word}"' if any(variable in word for variable in variables) else shlex.quote(word) for word in argv)
    return " \\\n    ".join(words)
