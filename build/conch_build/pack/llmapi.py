"""`model.yaml` of upstream's LLM-API model: Triton's own settings beside the arguments of `LLM()`."""

from __future__ import annotations

from typing import Any

import yaml

from conch_build.pack.deployment import Deployment
from conch_build.pack.parameters import CANCELLATION_CHECK_MS


def model_yaml(deployment: Deployment) -> str:
    """The file's text: the engine's own arguments, or those of the plan where no engine is built yet."""
    from conch_build.compile.pytorch import CHECKPOINT_DIR, LLM_ARGS_FILE, llm_args
    from conch_build.profiles import profile_for

    built = deployment.engine / LLM_ARGS_FILE
    if built.is_file():
        arguments = yaml.safe_load(built.read_text(encoding="utf-8"))
    else:
        arguments = llm_args(deployment.plan, deployment.info, profile_for(deployment.plan))
    settings: dict[str, Any] = {
        "triton_config": {
            "max_batch_size": 0,
            "decoupled": True,
            "cancellation_check_period_ms": int(CANCELLATION_CHECK_MS),
        },
        "model": str(deployment.engine / CHECKPOINT_DIR),
        **arguments,
    }
    return yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)
