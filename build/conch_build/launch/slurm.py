"""Scripts that start a server whose engine spans several nodes, for Slurm. Submits nothing."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator

from conch_build.errors import PlanError
from conch_build.launch.arrangement import Arrangement
from conch_build.launch.ranks import rank_script
from conch_build.launch.server import ServerFlags
from conch_build.recipe import Command, Recipe, TextFile

_RANK = "${SLURM_PROCID}"


def slurm_recipe(
    flags: ServerFlags,
    arrangement: Arrangement,
    folder: str,
    image: str | None = None,
    mounts: Iterable[str] = (),
) -> Recipe:
    """`rank.sh`, which every task runs, `job.sh` around it, and the command that submits it.

    `folder`, where the scripts lie, and what is in `mounts` have the same path on every node and in the container.
    """
    rank, job = f"{folder}/rank.sh", f"{folder}/job.sh"
    return Recipe(
        (
            TextFile("what each MPI rank runs", rank, rank_script(flags, arrangement, _RANK)),
            TextFile("the job", job, _job_script(arrangement, rank, image, (folder, *mounts))),
            Command("submit it", ("sbatch", job)),
        )
    )


def _job_script(arrangement: Arrangement, rank: str, image: str | None, mounts: Iterable[str]) -> str:
    container = ""
    if image is not None:  # Slurm's container options are those of its plugin pyxis, which wants '#' after a registry
        registry, _, name = image.partition("/")
        mounted = ",".join(f"{path}:{path}" for path in _mountable(mounts))
        container = f" \\\n  --container-image={shlex.quote(f'{registry}#{name}')}"
        container += f" \\\n  --container-mounts={shlex.quote(mounted)}"
    return (
        "#!/bin/sh\n"
        f"#SBATCH --nodes={arrangement.nodes}\n"
        f"#SBATCH --ntasks-per-node={arrangement.gpus_per_node}\n"
        f"#SBATCH --gpus-per-node={arrangement.gpus_per_node}\n"
        f"srun --mpi=pmix{container} \\\n  sh {shlex.quote(rank)}\n"
    )


def _mountable(paths: Iterable[str]) -> Iterator[str]:
    for path in dict.fromkeys(paths):
        if set(path) & set(":,"):
            raise PlanError("cannot be mounted by Slurm: it has a colon or a comma in its path", where=path)
        yield path
