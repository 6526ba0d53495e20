"""A command inside a container: the `docker run` that NVIDIA's images need. Starts nothing.

Paths are the same inside as outside, so that a recipe reads alike in both.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

EXAMPLES = "/app/tensorrt_llm/examples"
"""Where TensorRT-LLM's own image keeps its scripts."""

DOCKER_FLAGS = ("--gpus", "all", "--shm-size=2g", "--ulimit", "memlock=-1", "--ulimit", "stack=67108864")
"""GPUs, shared memory for Triton's stubs and NCCL, pinned memory."""


def docker_argv(
    image: str,
    argv: Sequence[str],
    *,
    name: str,
    read: Iterable[Path],
    write: Iterable[Path],
    workdir: Path,
    env: Mapping[str, str] | None = None,
) -> list[str]:
    """`docker run` of `argv` as the user who asks; it sees the paths `read` and may change those below `write`."""
    # The user has no entry in the image's passwd: torch asks for a name, caches want a home that can be written.
    own = {"HOME": str(workdir), "USER": "conch", "PYTHONUNBUFFERED": "1", **(env or {})}
    written = sorted({path.absolute() for path in write})
    seen = sorted({path.absolute() for path in read})
    line = ["docker", "run", "--rm", "--init", "--name", name, *DOCKER_FLAGS, "--user", f"{os.getuid()}:{os.getgid()}"]
    for path in written:
        line += ["-v", f"{path}:{path}"]
    for path in seen:
        if not any(path == parent or parent in path.parents for parent in written):
            line += ["-v", f"{path}:{path}:ro"]
    for key, value in own.items():
        line += ["-e", f"{key}={value}"]
    return [*line, "-w", str(workdir), image, *argv]
