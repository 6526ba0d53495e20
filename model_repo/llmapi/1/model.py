"""Text in, text out: the image's own model around the LLM API, which reads the model.yaml beside this file."""

import importlib.util
import sys
from pathlib import Path

_UPSTREAM = Path("/app/all_models/llmapi/tensorrt_llm/1/model.py")

if not _UPSTREAM.is_file():
    raise ImportError(f"{_UPSTREAM} is missing: serve this repository in a trtllm-python image of Triton")
sys.path.insert(0, str(_UPSTREAM.parent))  # it imports its neighbour helpers.py
_spec = importlib.util.spec_from_file_location("tensorrt_llm_llmapi_model", _UPSTREAM)
_model = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_model)
TritonPythonModel = _model.TritonPythonModel

__all__ = ["TritonPythonModel"]
