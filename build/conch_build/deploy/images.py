"""What is built into the images of a deployment: Conch itself, and for the gateway its libraries."""

from __future__ import annotations

import importlib.metadata
import re
import shlex
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from conch_build.recipe import TextFile

SOURCES = "conch"
"""Folder of Conch's packages beside the Dockerfiles."""
_PYTHON_IMAGE = "python:3.12-slim"
_HOME = "/opt/conch"


def dockerfiles(
    image: str | None, folder: str, extras: tuple[str, ...] = (), packages: tuple[str, ...] = ()
) -> tuple[TextFile, TextFile]:
    """Of Triton, on NVIDIA's `image` or, with None, as the Python package for CPUs; and of the gateway.

    `extras`: what the gateway needs beside its own libraries; `packages`: what Triton needs of the distribution.
    """
    # A .pth file is read by every Python of the image, also by the one inside Triton's python backend.
    installed = f"""COPY {SOURCES} {_HOME}
COPY ready.py {_HOME}/ready.py
RUN echo {_HOME} > "$(python3 -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')/conch.pth" \\
 && python3 -c 'import conch_build.manifest'
"""
    triton = f"FROM {image}\n" if image else _with_libraries("cpu")
    if packages:
        triton += f"RUN apt-get update && apt-get install -y --no-install-recommends {' '.join(packages)}\n"
    return (
        TextFile("Triton with Conch's python models", f"{folder}/triton.Dockerfile", triton + installed),
        TextFile("the gateway", f"{folder}/gateway.Dockerfile", _with_libraries("gateway", *extras) + installed),
    )


def ready_script(folder: str) -> TextFile:
    text = Path(__file__).with_name("ready.py").read_text(encoding="utf-8")
    return TextFile("the health check", f"{folder}/ready.py", text)


def sources(folder: str) -> Iterator[TextFile]:
    """Conch's own packages as they are installed here."""
    for package in ("conch_build", "conch"):
        spec = find_spec(package)
        if spec is None or spec.origin is None:  # conch_build alone: nothing to serve with
            continue
        root = Path(spec.origin).parent
        for path in sorted(root.rglob("*")):
            inside = path.relative_to(root)
            if path.is_file() and not any(part.startswith((".", "__pycache__")) for part in inside.parts):  # caches
                text = path.read_text(encoding="utf-8")
                yield TextFile("Conch", f"{folder}/{SOURCES}/{package}/{inside}", text)


def _with_libraries(*extras: str) -> str:
    libraries = " ".join(shlex.quote(name) for name in dict.fromkeys(_requirements(extras)))
    return f"FROM {_PYTHON_IMAGE}\nRUN pip install --no-cache-dir {libraries}\n"


def _requirements(extras: tuple[str, ...]) -> Iterator[str]:
    """What Conch needs, and what these extras add."""
    for line in importlib.metadata.requires("conch") or ():
        requirement, _, condition = line.partition(";")
        if not condition or re.search(rf"extra == ['\"]({'|'.join(extras)})['\"]", condition):
            yield requirement.strip()
