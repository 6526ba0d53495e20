"""`trtllm-serve`: TensorRT-LLM's own OpenAI server, started with the arguments that the plan decides.

Everything but where it listens stands in the YAML: fewest of it differs between releases.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from conch_build.errors import PlanError
from conch_build.plan import Plan
from conch_build.profiles import Profile, container_of, profile_for
from conch_build.recipe import Command

SERVE = "trtllm-serve"
LAUNCH, RANK = ("srun", "--mpi=pmix"), "trtllm-llmapi-launch"
"""How one server gets ranks on several machines: Slurm starts them, and each is wrapped."""


def serve_command(plan: Plan, model: Path, args: Path, *, host: str = "127.0.0.1", port: int = 8000) -> Command:
    """The server of the checkpoint `model` with the arguments in the file `args`.

    Raises PlanError when the release does not take a flag.
    """
    profile = profile_for(plan)
    argv = checked_argv(serve_argv(model, args, host, port), profile)
    parallel = plan.engine.parallel
    ranks = parallel.tensor * parallel.pipeline
    if ranks > plan.target.gpus_per_node:
        argv = [*LAUNCH, "-n", str(ranks), "--ntasks-per-node", str(plan.target.gpus_per_node), RANK, *argv]
    return Command(f"serve {plan.name}", tuple(argv), image=container_of(plan))


def serve_script(plan: Plan, checkpoint: str, args: str) -> str:
    """`trtllm-serve.sh` of an engine: it serves what lies beside it, under these names."""
    command = serve_command(plan, Path(checkpoint), Path(args))
    words = {checkpoint: f'"$here"/{checkpoint}', args: f'"$here"/{args}', "127.0.0.1": '"$host"', "8000": '"$port"'}
    line = " ".join(words.get(word) or shlex.quote(word) for word in command.argv)
    return _SCRIPT.format(name=plan.name, line=line)


_SCRIPT = """\
#!/bin/sh
# TensorRT-LLM's own OpenAI server of {name}, in its image: sh trtllm-serve.sh [HOST [PORT]]
set -eu
here=$(cd "$(dirname "$0")" && pwd)
host=${{1:-127.0.0.1}} port=${{2:-8000}}
exec {line}
"""


def serve_argv(model: Path | str, args: Path | str, host: str, port: int) -> list[str]:
    """One server's command line."""
    argv = [SERVE, str(model), "--host", host, "--port", str(port), "--backend", "pytorch"]
    return [*argv, "--extra_llm_api_options", str(args)]


def checked_argv(argv: list[str], profile: Profile) -> list[str]:
    """The same, if the release knows every flag. Raises PlanError with all that it does not."""
    words = argv[:2] if argv[1] == "disaggregated" else argv[:1]
    if problems := profile.flag_problems(" ".join(words), argv[len(words) :]):
        raise PlanError(
            f"TensorRT-LLM {profile.name} does not take this {' '.join(words)}: {'; '.join(problems)}", where="plan"
        )
    return argv
