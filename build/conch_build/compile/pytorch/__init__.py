"""The backend `pytorch`: a checkpoint as TensorRT-LLM's LLM API loads it, and the arguments to load it with.

    checkpoint --ModelOpt--> quantized checkpoint + llm_args.yaml --> Triton, trtllm-serve, disaggregated workers

`llm_args` decides the arguments, `recipe` says which steps lead there, `serve_command` starts `trtllm-serve`.
"""

from conch_build.compile.pytorch.arguments import llm_args, to_yaml
from conch_build.compile.pytorch.recipe import CHECKPOINT_DIR, LLM_ARGS_FILE, recipe
from conch_build.compile.pytorch.serve import serve_command

__all__ = ["CHECKPOINT_DIR", "LLM_ARGS_FILE", "llm_args", "recipe", "serve_command", "to_yaml"]
