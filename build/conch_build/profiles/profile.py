"""A version profile: what one release of TensorRT-LLM has, how it spells it, and what it does not take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from conch_build.profiles import argument_rules, arguments, build_rules, flags
from conch_build.profiles.problem import Problem

MODELOPT_SCRIPT = "hf_ptq.py"
SAME = {"trtllm-serve serve": "trtllm-serve"}
"""Commands with two names."""


@dataclass(frozen=True)
class Container:
    """One image of NVIDIA's registry; None where the release notes do not say."""

    tag: str
    tensorrt_llm: str
    triton: bool
    """Whether it has a tritonserver."""
    tensorrt: str | None = None
    cuda: str | None = None
    driver: str | None = None
    """The oldest one that its notes name."""
    python: str | None = None
    torch: str | None = None


@dataclass(frozen=True)
class Profile:
    name: str
    """The release, as `1.2.1`."""
    snapshots: str
    """Letters of `presence`: the sources that stand for it."""
    backends: tuple[str, ...]
    containers: tuple[Container, ...]
    """The newest first."""
    modelopt: str
    """Release of ModelOpt whose names it takes."""
    modelopt_script: str
    """Path of `hf_ptq.py` in ModelOpt's repository."""
    qformats: Mapping[str, str]
    """Format of a plan -> `--qformat` of `hf_ptq.py`. Without those that have no checkpoint for the LLM API."""
    kv_qformats: Mapping[str, str]
    """Type of the KV cache -> `--kv_cache_qformat`."""
    decoding_types: Mapping[str, str]
    """Method of a plan -> `decoding_type` of the LLM API. Without those it has not."""
    commands: frozenset[str]
    """Programs without a table of flags here."""

    @property
    def container(self) -> str:
        """Tag of the newest image."""
        return self.containers[0].tag

    @property
    def tensorrt(self) -> str | None:
        return self.containers[0].tensorrt

    @property
    def python(self) -> str | None:
        return self.containers[0].python

    def has_command(self, command: str) -> bool:
        """Whether the release has a program: `trtllm-build`, `llama/convert_checkpoint.py`, `trtllm-bench`, ..."""
        return self._tool_name(command) in flags.tools(self.snapshots) or command in self.commands

    def flags_of(self, command: str) -> tuple[flags.Flag, ...]:
        """Flags of a program that the release has."""
        return flags.tools(self.snapshots)[self._tool_name(command)].flags

    def flag_problems(self, command: str, argv: Sequence[str], *, sm: int | None = None) -> list[str]:
        """What is wrong with `argv`, the words after the program's own name; `sm`: of the GPU it is for, if known."""
        tool = flags.tools(self.snapshots).get(self._tool_name(command))
        if tool is None:
            why = flags.absent_tool(command, self.snapshots)
            return [f"{command} {why}" if why else f"no flags of {command} are known"]
        values, problems = tool.read(argv)
        if command == "trtllm-build":
            problems += build_rules.problems(values, sm)
        return problems

    def llm_args_problems(self, args: Mapping[str, Any], backend: str) -> list[Problem]:
        """What the release does not take of arguments of its LLM API, by `backend`: every key, every level."""
        if backend not in self.backends:
            return [Problem("backend", f"{self.name} has no {backend} backend", "Use `pytorch`.")]
        found = list(arguments.field_problems(args, backend, self.snapshots))
        wrong = {problem.key for problem in found}
        return found + [
            problem for problem in argument_rules.problems(args, backend, self.snapshots) if problem.key not in wrong
        ]

    def llm_args_warnings(self, args: Mapping[str, Any]) -> list[Problem]:
        """What the release takes, and what then does not do what it looks like."""
        return list(argument_rules.warnings(args, self.snapshots))

    @property
    def graphs_take_adapters(self) -> bool:
        """Whether the LLM API's CUDA graphs go with adapters."""
        return argument_rules.graphs_take_adapters(self.snapshots)

    def llm_args_fields(self, part: str) -> Mapping[str, arguments.Field]:
        """Fields of `KvCacheConfig`, `TorchLlmArgs`, ... in the release."""
        return arguments.fields_of(part, self.snapshots)

    def llm_args_defaults(self, part: str) -> dict[str, Any]:
        """What it takes for fields that are left out."""
        return arguments.defaults_of(part, self.snapshots)

    def _tool_name(self, command: str) -> str:
        if command == MODELOPT_SCRIPT:
            return f"{command} {self.modelopt.rpartition('.')[0]}"
        return SAME.get(command, command)
