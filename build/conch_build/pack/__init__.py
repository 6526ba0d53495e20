"""An engine and the templates of `model_repo/` become a model repository that Triton loads.

    deployment.py   what is deployed: plan, engine, model
    parameters.py   every parameter of upstream's templates: its value, or why it is left to its default
    configs.py      config.pbtxt as Triton's message: read, filled, written
    models.py       which models a plan has, and the configuration of each
    write.py        the repository on disk
    check.py        what is wrong with a repository, ours or another's
    summary.py      a repository in one page, before there is one

Knows nothing of how the models run and how Triton is started.
"""

from conch_build.pack.check import check_repository, repository_problems
from conch_build.pack.configs import read_config, templates_dir
from conch_build.pack.deployment import Deployment
from conch_build.pack.models import layout_of
from conch_build.pack.summary import repository_summary
from conch_build.pack.write import check_plan, deciding_settings, pack

__all__ = [
    "Deployment",
    "check_plan",
    "check_repository",
    "deciding_settings",
    "layout_of",
    "pack",
    "read_config",
    "repository_problems",
    "repository_summary",
    "templates_dir",
]
