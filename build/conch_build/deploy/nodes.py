"""Slurm's scripts of a plan whose engine spans several nodes."""

from __future__ import annotations

import secrets

from conch_build.deploy.artifacts import Built, check_triton, triton_image
from conch_build.errors import PlanError
from conch_build.launch import arrangement_of, flags_of, slurm_recipe
from conch_build.plan import Plan
from conch_build.recipe import TextFile


def slurm_files(plan: Plan, built: Built, folder: str) -> tuple[TextFile, ...]:
    """`job.sh`, for sbatch, and `rank.sh` in it. Raises PlanError for a plan that needs no MPI."""
    check_triton(plan, "`conch deploy slurm`")
    arrangement = arrangement_of(plan)
    if arrangement.mode not in ("leader", "llmapi"):
        raise PlanError(
            f"its server is `{arrangement.mode}`: one process, which Slurm's MPI has nothing to connect",
            where="engine.parallel",
            fix="`conch deploy compose` or `conch serve` on the GPU's own machine starts it.",
        )
    # Loopback of the first node: whoever is to reach it from elsewhere puts the gateway beside it.
    flags = flags_of(plan, str(built.repository), secrets.token_hex(16))
    if plan.serving.replicas > 1:
        raise PlanError("a job starts one engine", where="serving.replicas", fix="Leave it out; submit several jobs.")
    recipe = slurm_recipe(flags, arrangement, folder, triton_image(plan), built.mounts(plan))
    return tuple(step for step in recipe.steps if isinstance(step, TextFile))
