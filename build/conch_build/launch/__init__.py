"""How a Triton server is started: the command lines, for every arrangement of processes. Starts nothing.

    server.py        the flags of one tritonserver
    arrangement.py   which processes a plan needs: one, a rank a GPU, an orchestrator, several nodes
    commands.py      the command that starts them on one machine
    ranks.py         what each rank runs on several
    slurm.py         the scripts that start them there, for Slurm
    pods.py          and in the pods of a LeaderWorkerSet

Everything comes as `recipe.Command` and `recipe.TextFile`. Knows nothing of engines and of what is installed.
"""

from conch_build.launch.arrangement import SINGLE, Arrangement, arrangement_of
from conch_build.launch.commands import check_one_machine, flags_of, start_command
from conch_build.launch.pods import ADMIN_KEY, SSH_PORT, pod_scripts
from conch_build.launch.server import ServerFlags
from conch_build.launch.slurm import slurm_recipe

__all__ = [
    "ADMIN_KEY",
    "SINGLE",
    "SSH_PORT",
    "Arrangement",
    "ServerFlags",
    "arrangement_of",
    "check_one_machine",
    "flags_of",
    "pod_scripts",
    "slurm_recipe",
    "start_command",
]
