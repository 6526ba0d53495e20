"""The compose file of a plan and all that it needs beside it: settings, images, the health check."""

from __future__ import annotations

import re
import secrets

import yaml

from conch_build.deploy.artifacts import Built, check_gateway, check_triton, gateway_extras, triton_image
from conch_build.deploy.images import dockerfiles, ready_script, sources
from conch_build.deploy.services import BIND, KEY, STATE, services
from conch_build.deploy.watching import STORES, watchers, watchers_files
from conch_build.errors import PlanError
from conch_build.plan import Plan
from conch_build.recipe import TextFile

_HEAD = """# Start: docker compose up -d --build --wait
# Stop:  docker compose down
# Keys:  docker compose run --rm --no-deps gateway python3 -m conch.cli keys create NAME
#        Without one the gateway answers its own machine alone, and does not start on other addresses.
# Watch: docker compose --profile monitoring up -d; Prometheus on port 9090, Grafana on 3000.
#        Once there are keys: one with --scope metrics, into metrics.key.
"""


def compose_files(plan: Plan, text: str, built: Built, folder: str, *, public: bool = False) -> tuple[TextFile, ...]:
    """`compose.yaml` and its neighbours in `folder`. `public`: the gateway listens on every address of the machine.

    `text`: the plan's own, which the gateway reads. Raises PlanError for a plan that needs several nodes, or no Triton,
    or files that no container would have.
    """
    check_triton(plan, "`conch deploy compose`")
    check_gateway(plan)
    if plan.serving.replicas > 1:
        raise PlanError(
            "a compose file starts one Triton", where="serving.replicas", fix="Leave it out, or use `conch serve`."
        )
    name = f"conch-{re.sub('[^a-z0-9_-]', '-', plan.name.lower())}"
    volumes: dict[str, dict[str, str]] = {volume: {} for volume in (STATE, *STORES)}
    document = {"name": name, "services": {**services(plan, built), **watchers()}, "volumes": volumes}
    gpus = plan.engine.backend != "openvino"
    composed = _HEAD + yaml.safe_dump(document, sort_keys=False, width=120)
    return (
        TextFile("the services", f"{folder}/compose.yaml", composed),
        TextFile("their settings", f"{folder}/.env", _settings("0.0.0.0" if public else "127.0.0.1", gpus)),
        TextFile("what the gateway reads", f"{folder}/conch.yaml", text),
        *watchers_files(plan, folder),
        *dockerfiles(triton_image(plan) if gpus else None, folder, gateway_extras(plan)),
        ready_script(folder),
        *sources(folder),
    )


def _settings(bind: str, gpus: bool) -> str:
    text = f"# Where the gateway listens. Triton stays on loopback: it asks nobody for a key.\n{BIND}={bind}\n"
    if gpus:
        text += "# Opens Triton's administration to who sends it in the header conch-admin.\n"
        text += f"{KEY}={secrets.token_hex(16)}\n"
    return text
