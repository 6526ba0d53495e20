"""What the stages of a build share: what decides a result, its place in the store, and how it is told of.

Knows no stage.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from conch_build.extras import lacking
from conch_build.files import sha256_file
from conch_build.manifest import Kind
from conch_build.store import Artifact, Store, artifact_key
from conch_build.units import format_bytes, format_seconds

Say = Callable[[str], None]

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Stage:
    """One result that is built unless it is there: everything that decides it, before it is made."""

    kind: Kind
    name: str
    inputs: Mapping[str, Any]
    versions: Mapping[str, str]

    @property
    def key(self) -> str:
        return artifact_key(self.kind, self.name, {**self.inputs, "versions": dict(self.versions)})

    def path(self, store: Store) -> Path:
        """Where its artifact is, or would be."""
        return store.path_of(self.kind, self.name, self.key)

    def found(self, store: Store) -> Artifact | None:
        return store.peek(self.kind, self.name, self.inputs, self.versions)

    def built(self, store: Store, make: Callable[[Path], None], *, force: bool) -> Artifact:
        """Its artifact, made if need be. Raises what `Store.get_or_build` does."""
        return store.get_or_build(self.kind, self.name, self.inputs, make, versions=self.versions, force=force)


def line(artifact: Artifact) -> str:
    """One finished stage."""
    how = "reused" if artifact.reused else f"built in {format_seconds(artifact.manifest.seconds)}"
    return f"{artifact.kind:<10}  {artifact.path.name}: {how} ({format_bytes(artifact.manifest.size_bytes)})"


def slug(source: str) -> str:
    """A checkpoint's name as part of a folder's name."""
    return re.sub(r"[^A-Za-z0-9._]+", "-", Path(source).name).strip("-.")[:48] or "checkpoint"


def versions(*distributions: str) -> dict[str, str]:
    """Those of installed packages. Raises SetupError naming the extra that brings a missing one."""
    try:
        return {name: version(name) for name in distributions}
    except PackageNotFoundError as error:
        raise lacking(error) or error from None


def sources(*paths: Path) -> str:
    """Hash of a stage's own files: a change of its code is a change of its result."""
    files: Iterable[Path] = (file for path in paths for file in (sorted(path.rglob("*")) if path.is_dir() else [path]))
    digest = hashlib.sha256()
    for file in files:
        if file.is_file() and "__pycache__" not in file.parts:
            digest.update(f"{file.name} {sha256_file(file)}\n".encode())
    return digest.hexdigest()
