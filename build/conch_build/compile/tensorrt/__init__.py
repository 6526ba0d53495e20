"""The backend `tensorrt`: a checkpoint becomes engines through TensorRT-LLM's own programs.

    checkpoint --quantize.py | convert_checkpoint.py--> rank files --trtllm-build--> engine directory

`recipe` says which commands that takes, `engine_config` reads back what they made.
"""

from conch_build.compile.tensorrt.recipe import Source, checkpoint_recipe, engine_recipe, recipe

__all__ = ["Source", "checkpoint_recipe", "engine_recipe", "recipe"]
