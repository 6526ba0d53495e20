"""The compose file of a plan and all that it needs beside it: settings, images, the health check."""

from __future__ import annotations

import re
import secrets

import yaml

from conch_build.deploy.artifacts import Built, check_triton, triton_image
from conch_build.deploy.images import dockerfiles, ready_script, sources
from conch_build.deploy.services import BIND, KEY, STATE, services
from conch_build.errors import PlanError
from conch_build.plan import Plan
from conch_build.recipe import TextFile

_TOLD = {"host", "port", "tool_format", "unknown_parameters"}
_HEAD = """# Start: docker compose up -d --build --wait
# Stop:  docker compose down
# Keys:  docker compose run --rm --no-deps gateway python3 -m conch.cli keys create NAME
#        Without one the gateway answers its own machine alone, and does not start on other addresses.
"""


def compose_files(plan: Plan, built: Built, folder: str, *, public: bool = False) -> tuple[TextFile, ...]:
    """`compose.yaml` and its neighbours in `folder`. `public`: the gateway listens on every address of the machine.

    Raises PlanError for a plan that needs several nodes, or no Triton, or more of the gateway than it is told here.
    """
    check_triton(plan, "`conch deploy compose`")
    _check_gateway(plan)
    if plan.serving.replicas > 1:
        raise PlanError(
            "a compose file starts one Triton", where="serving.replicas", fix="Leave it out, or use `conch serve`."
        )
    name = f"conch-{re.sub('[^a-z0-9_-]', '-', plan.name.lower())}"
    document = {"name": name, "services": services(plan, built), "volumes": {STATE: {}}}
    gpus = plan.engine.backend != "openvino"
    text = _HEAD + yaml.safe_dump(document, sort_keys=False, width=120)
    return (
        TextFile("the services", f"{folder}/compose.yaml", text),
        TextFile("their settings", f"{folder}/.env", _settings("0.0.0.0" if public else "127.0.0.1", gpus)),
        *dockerfiles(triton_image(plan) if gpus else None, folder),
        ready_script(folder),
        *sources(folder),
    )


def _check_gateway(plan: Plan) -> None:
    """Raises PlanError for what the gateway would have to read in the plan, which its container has not."""
    for name in sorted(plan.serving.gateway.model_dump(exclude_defaults=True).keys() - _TOLD):
        raise PlanError(
            "the gateway of a compose file is told on its command line, and not this",
            where=f"serving.gateway.{name}",
            fix="Leave it out, or run `conch gateway` with the plan beside Triton's container.",
        )


def _settings(bind: str, gpus: bool) -> str:
    text = f"# Where the gateway listens. Triton stays on loopback: it asks nobody for a key.\n{BIND}={bind}\n"
    if gpus:
        text += "# Opens Triton's administration to who sends it in the header conch-admin.\n"
        text += f"{KEY}={secrets.token_hex(16)}\n"
    return text
