"""Disaggregated serving: prompts are read on some workers and answers written on others, behind one proxy.

    layout.py      which worker runs where, on which GPUs and port
    arguments.py   the arguments of both kinds of workers
    proxy.py       the proxy's own file
    rules.py       what all three must agree on
    script.py      the script that starts and ends them
    recipe.py      all of it, from a plan

Workers and proxy are `trtllm-serve`; the KV cache travels from worker to worker. Knows nothing of Triton.
"""

from conch_build.disaggregated.layout import Worker, workers_of
from conch_build.disaggregated.recipe import recipe

__all__ = ["Worker", "recipe", "workers_of"]
