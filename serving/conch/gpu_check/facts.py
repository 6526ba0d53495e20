"""What a release of TensorRT-LLM says of itself: the flags of its commands, its arguments, its images' templates."""

from __future__ import annotations

from pathlib import Path

from conch.gpu_check.journal import run
from conch.gpu_check.machine import Means

_SCRIPT = r"""
ask() { printf '\n===== %s\n' "$*"; timeout 300 "$@" 2>&1 || true; }
ask python3 -c 'import tensorrt_llm; print(tensorrt_llm.__version__)'
ask trtllm-build --help
ask trtllm-serve serve --help
ask trtllm-serve disaggregated --help
ask /opt/tritonserver/bin/tritonserver --help
ask python3 /app/scripts/launch_triton_server.py --help
ask ls /app /app/all_models /app/tools /opt/tritonserver/backends
ask sh -c 'grep -rho "\${[a-z_]*}" /app/all_models --include=config.pbtxt | sort -u'
ask python3 -m pip list
ask python3 -c 'import json
from tensorrt_llm.llmapi.llm_args import TorchLlmArgs
print(json.dumps(TorchLlmArgs.model_json_schema()))'
ask python3 -c 'import json
from tensorrt_llm.llmapi.llm_args import TrtLlmArgs
print(json.dumps(TrtLlmArgs.model_json_schema()))'
"""


def release_facts(means: Means, image: str, log: Path) -> str:
    """All of it as text. Raises ServiceError when the image cannot be run."""
    if means == "host":
        return run(["sh", "-c", _SCRIPT], log, seconds=1800)
    # A first run pulls an image of 14 GB.
    docker = ["docker", "run", "--rm", "--gpus", "all", "--shm-size=2g", image, "sh", "-c", _SCRIPT]
    return run(docker, log, seconds=3 * 3600)
