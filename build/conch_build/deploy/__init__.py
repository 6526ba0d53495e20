"""The files with which other machines serve what was built: containers by compose, several nodes by Slurm.

    artifacts.py   what is deployed, and where it lies
    kubernetes/    manifests and a Helm chart of a plan
    compose.py     the compose file of a plan, of its services.py; watching.py: Prometheus and Grafana beside them
    images.py      what is built into its images
    ready.py       the health check in them, a program of its own
    nodes.py       Slurm's scripts of a plan

Everything comes as `recipe.TextFile`; nothing is started.
"""

from conch_build.deploy.artifacts import Built
from conch_build.deploy.compose import compose_files
from conch_build.deploy.kubernetes import kubernetes_files
from conch_build.deploy.nodes import slurm_files

__all__ = ["Built", "compose_files", "kubernetes_files", "slurm_files"]
