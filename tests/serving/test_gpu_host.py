"""What of a GPU machine is looked at before a server starts, beside its programs: shared memory."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from conch.triton.gpu import find_gpu_server
from conch_build.errors import SetupError
from conch_build.gpu.cards import GPUS
from conch_build.launch import SINGLE


def test_the_shared_memory_of_a_plain_container_is_too_small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'NVIDIA H100 80GB HBM3, 81559, 9.0, 590.44.01'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(total=64 << 20))
    with pytest.raises(SetupError, match=r"64\.00 MiB in /dev/shm"):
        find_gpu_server("pytorch", SINGLE, GPUS["h100"], "image:1")
