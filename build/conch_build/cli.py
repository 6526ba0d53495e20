"""The commands of the build side, imported only when they run. `conch.cli` mounts them beside its own."""

from __future__ import annotations

from conch_build.console import LazyGroup

LAZY_COMMANDS = {
    "init": ("conch_build.commands.init:init", "Write a commented plan for a checkpoint."),
    "check": ("conch_build.commands.check:check", "Say everything that would fail, before time is spent."),
    "explain": ("conch_build.commands.explain:explain", "Say what a rule of `conch check` is about."),
    "size": ("conch_build.commands.size:size", "Memory of a model to the byte, and the GPUs that hold it."),
    "advise": ("conch_build.commands.advise:advise", "A plan for a machine and a goal, and why each choice."),
    "build": ("conch_build.commands.build:build", "Quantize, compile and pack what a plan describes."),
    "migrate": ("conch_build.commands.migrate:migrate", "Turn an engine plan into one for the LLM API."),
    "deploy": ("conch_build.commands.deploy:deploy", "Write compose files or Slurm scripts for GPU machines."),
    "artifacts": ("conch_build.commands.artifacts:artifacts", "List, verify and remove what was built."),
    "schema": ("conch_build.commands.schema:schema", "Print the plan's JSON Schema."),
}

build_commands = LazyGroup("conch-build", lazy=LAZY_COMMANDS, help=__doc__)
