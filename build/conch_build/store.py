"""Artifacts on disk, addressed by the hash of everything that made them.

    <root>/<kind>/<name>-<key12>/           a whole artifact: it appears by one rename
    <root>/<kind>/.tmp-<name>-<key12>/      a build under way, or what a killed one left
    <root>/.locks/<key12>                   held (flock) by whoever builds or removes that key

The kernel drops a lock when its holder dies, so a free lock means that nobody is at work. Whoever uses an
artifact holds a shared flock on its folder. Knows nothing of what is inside an artifact.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, get_args

from conch_build.disk import flock, plain_errors, sync
from conch_build.errors import InputError, StoreError
from conch_build.files import home, sha256_file
from conch_build.manifest import ARTIFACT_FILE, ArtifactManifest, Kind, StoredFile

Say = Callable[[str], None]
KINDS: tuple[Kind, ...] = get_args(Kind)
_TEMPORARY, _REMOVED = ".tmp-", ".removed"
_SHORT = 12


def artifact_key(kind: Kind, name: str, inputs: Mapping[str, Any]) -> str:
    """Hex sha256 of the canonical JSON of what makes an artifact. `inputs` holds JSON values only."""
    content = {"kind": kind, "name": name, "inputs": inputs}
    return hashlib.sha256(
        json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    ).hexdigest()


def default_root() -> Path:
    return home() / "store"


@dataclass(frozen=True)
class Artifact:
    """A whole artifact. `reused`: whether it was there before it was asked for."""

    path: Path
    manifest: ArtifactManifest
    reused: bool = True

    @classmethod
    def load(cls, path: Path) -> Artifact:
        """The artifact in a folder. Raises StoreError when there is none."""
        return cls(path, ArtifactManifest.load(path))

    @property
    def kind(self) -> Kind:
        return self.manifest.kind

    @property
    def name(self) -> str:
        return self.manifest.name

    @property
    def key(self) -> str:
        return self.manifest.key

    @property
    def label(self) -> str:
        """`engine/smollm2-0123456789ab`, as people name it to `conch artifacts`."""
        return f"{self.kind}/{self.path.name}"

    @property
    def repair(self) -> str:
        """What a person does about damage."""
        return f"Run `conch artifacts remove {self.label}`, then build again."

    def as_dict(self) -> dict[str, Any]:
        """The artifact as `--json` prints it."""
        return {
            "artifact": self.label,
            "path": str(self.path),
            "key": self.key,
            "size_bytes": self.manifest.size_bytes,
            "created": self.manifest.created,
            "seconds": self.manifest.seconds,
        }

    @contextmanager
    def hold(self) -> Iterator[Path]:
        """Keep the artifact from being removed while its files are in use; many may hold it at once.

        Raises StoreError when it is gone or being removed.
        """
        with flock(self.path, fcntl.LOCK_SH | fcntl.LOCK_NB, directory=True) as held:
            if not held:
                raise StoreError("is being removed or rebuilt", where=self.label)
            yield self.path

    def damage(self, *, full: bool = False) -> list[str]:
        """What is wrong with the files, one sentence each; sizes only, unless `full` (hashes)."""
        return list(_damage(self.path, self.manifest, full))


Artifacts = list[Artifact]


class Store:
    """The artifacts under one root; any number of processes may use it at once."""

    def __init__(self, root: Path | None = None, *, say: Say = lambda text: None) -> None:
        self.root = (root or default_root()).absolute()
        self._say = say

    def get_or_build(
        self,
        kind: Kind,
        name: str,
        inputs: Mapping[str, Any],
        make: Callable[[Path], None],
        *,
        versions: Mapping[str, str] | None = None,
        force: bool = False,
    ) -> Artifact:
        """The artifact of `inputs` (and `versions`): the one in the store, or a new one that `make` fills.

        Of several builders of the same key one builds and the others wait for it. Raises StoreError when the
        disk is full or not writable, and whatever `make` raises; then nothing stays behind.
        """
        everything = {**inputs, "versions": dict(versions or {})}
        key = artifact_key(kind, name, everything)
        path = self.path_of(kind, name, key)
        if not force and isinstance(found := self._examine(path), Artifact):
            return found
        with plain_errors(path):
            asked_at = time.time()
            with self._locked(key[:_SHORT], f"{kind}/{path.name}"):
                self._sweep(mine=key[:_SHORT])
                found = self._examine(path)
                # With `force`, what another process finished while this one waited is fresh enough.
                if isinstance(found, Artifact) and (not force or path.stat().st_mtime >= asked_at):
                    return found
                if isinstance(found, StoreError):
                    self._say(f"{found.where} {found.what}; building it again")
                manifest = self._build(path, kind, name, key, everything, make)
        return Artifact(path, manifest, reused=False)

    def peek(
        self, kind: Kind, name: str, inputs: Mapping[str, Any], versions: Mapping[str, str] | None = None
    ) -> Artifact | None:
        """The whole artifact of `inputs`, if it is there; builds nothing and waits for nobody."""
        key = artifact_key(kind, name, {**inputs, "versions": dict(versions or {})})
        found = self._examine(self.path_of(kind, name, key))
        return found if isinstance(found, Artifact) else None

    def path_of(self, kind: Kind, name: str, key: str) -> Path:
        """Where the artifact of a key is, or would be."""
        return self.root / kind / f"{name}-{key[:_SHORT]}"

    def list(self) -> Artifacts:
        """Every artifact, by kind, oldest first. What does not read as one is left out; `say` hears of it."""
        found = []
        for path in self.root.glob(f"*/*/{ARTIFACT_FILE}"):
            if path.parent.name.startswith(_TEMPORARY):
                continue
            try:
                found.append(Artifact.load(path.parent))
            except StoreError as error:
                self._say(error.message)
        return sorted(found, key=lambda artifact: (KINDS.index(artifact.kind), artifact.manifest.created))

    def find(self, label: str) -> Artifact:
        """The artifact that an unambiguous beginning of `kind/name-key`, of `name-key` or of the key names.

        Raises InputError when it names none or several.
        """
        matches = [
            artifact
            for artifact in self.list()
            if artifact.label.startswith(label)
            or artifact.path.name.startswith(label)
            or (len(label) >= 4 and artifact.key.startswith(label))
        ]
        exact = [artifact for artifact in matches if label in (artifact.label, artifact.path.name)]
        if len(exact or matches) == 1:
            return (exact or matches)[0]
        if not matches:
            raise InputError("no such artifact", where=label, fix="`conch artifacts list` shows all.")
        names = ", ".join(artifact.label for artifact in matches)
        raise InputError(f"names several artifacts: {names}", where=label, fix="Write more of its name.")

    def verify(self, artifact: Artifact, *, full: bool = True) -> None:
        """Raises StoreError naming every file that is missing, changed or of the wrong size."""
        if problems := artifact.damage(full=full):
            raise StoreError(
                f"is damaged: {'; '.join(problems)}",
                where=artifact.label,
                fix=artifact.repair,
            )

    def remove(self, artifact: Artifact) -> None:
        """Delete an artifact. Raises StoreError when it is held."""
        with plain_errors(artifact.path), self._locked(artifact.key[:_SHORT], artifact.label):
            self._discard(artifact.path)

    def _examine(self, path: Path) -> Artifact | StoreError | None:
        """The artifact at `path`, what is wrong with it, or None: nothing is there."""
        if not path.is_dir():
            return None
        try:
            artifact = Artifact.load(path)
            self.verify(artifact, full=False)
        except StoreError as error:
            return error
        return artifact

    def _build(
        self,
        path: Path,
        kind: Kind,
        name: str,
        key: str,
        inputs: Mapping[str, Any],
        make: Callable[[Path], None],
    ) -> ArtifactManifest:
        scratch = _scratch(path)
        started = time.monotonic()
        scratch.mkdir(parents=True)
        try:
            make(scratch)
            manifest = ArtifactManifest(
                kind=kind,
                name=name,
                key=key,
                inputs={key: value for key, value in inputs.items() if key != "versions"},
                files=_sealed_files(scratch),
                versions=inputs["versions"],
                created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
                seconds=round(time.monotonic() - started, 3),
            )
            manifest.save(scratch)
            sync(scratch / ARTIFACT_FILE)
            for folder in (scratch, *(p for p in scratch.rglob("*") if p.is_dir())):
                sync(folder)
            if path.exists():
                self._discard(path)
            os.utime(scratch)
            scratch.rename(path)
            sync(path.parent)
        except BaseException:
            shutil.rmtree(scratch, ignore_errors=True)
            raise
        return manifest

    def _discard(self, path: Path) -> None:
        """Take a folder out of the store in one step, then delete it. The caller has the key's lock."""
        with flock(path, fcntl.LOCK_EX | fcntl.LOCK_NB, directory=True) as free:
            if not free:
                raise StoreError(
                    "is in use by a running server",
                    where=f"{path.parent.name}/{path.name}",
                    fix="Stop the server that serves it first.",
                )
            doomed = path.with_name(f"{_scratch(path).name}{_REMOVED}")
            shutil.rmtree(doomed, ignore_errors=True)
            path.rename(doomed)
        shutil.rmtree(doomed)

    def _sweep(self, mine: str) -> None:
        """Delete what killed builds left: temporary folders of this key and of every key that is free."""
        for scratch in self.root.glob(f"*/{_TEMPORARY}*"):
            key = scratch.name.removesuffix(_REMOVED).rpartition("-")[2]
            if key == mine:
                shutil.rmtree(scratch, ignore_errors=True)
                continue
            with flock(self._lock_file(key), fcntl.LOCK_EX | fcntl.LOCK_NB) as free:
                if free:
                    shutil.rmtree(scratch, ignore_errors=True)

    def _lock_file(self, key: str) -> Path:
        return self.root / ".locks" / key

    @contextmanager
    def _locked(self, key: str, label: str) -> Iterator[None]:
        lock = self._lock_file(key)
        lock.parent.mkdir(parents=True, exist_ok=True)
        with flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB) as free:
            if free:
                yield
                return
        self._say(f"{label}: another process is at it; waiting")
        with flock(lock, fcntl.LOCK_EX):
            yield


def _scratch(path: Path) -> Path:
    return path.with_name(f"{_TEMPORARY}{path.name}")


def _sealed_files(folder: Path) -> dict[str, StoredFile]:
    """Size and hash of every file, each one on the disk before it is counted."""
    files = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        sync(path)
        size = path.stat().st_size
        files[path.relative_to(folder).as_posix()] = StoredFile(size=size, sha256=sha256_file(path))
    if not files:
        raise StoreError("the build made no files", where=folder.name)
    return files


def _damage(folder: Path, manifest: ArtifactManifest, full: bool) -> Iterator[str]:
    for name, expected in manifest.files.items():
        path = folder / name
        if not path.is_file():
            yield f"{name} is missing"
        elif (size := path.stat().st_size) != expected.size:
            yield f"{name} has {size:,} bytes instead of {expected.size:,}"
        elif full and sha256_file(path) != expected.sha256:
            yield f"{name} has changed (another sha256)"
