"""`conch artifacts`: list, verify and remove what was built."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from conch_build.console import Console, table, with_console
from conch_build.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from conch_build.store import Artifact, Store


@click.group()
def artifacts() -> None:
    """List, verify and remove what was built."""


@artifacts.command("list")
@with_console
def list_artifacts(console: Console) -> None:
    """Every artifact in the store, oldest first within its kind."""
    store = _store(console)
    found = store.list()
    rows = [_row(artifact) for artifact in found]
    text = table(["ARTIFACT", "SIZE", "BUILT IN", "CREATED"], rows) if rows else f"nothing in {store.root}"
    console.result([artifact.as_dict() for artifact in found], text)


@artifacts.command()
@click.argument("names", nargs=-1, metavar="[ARTIFACT]...")
@with_console
def verify(console: Console, names: tuple[str, ...]) -> None:
    """Read every byte of the named artifacts (of all, without names) and compare it with its hash.

    Exit code 3 if one is damaged.
    """
    store = _store(console)
    chosen = [store.find(name) for name in names] if names else store.list()
    checked = [(artifact, artifact.damage(full=True)) for artifact in chosen]
    report = [
        {"artifact": artifact.label, "ok": not found, "problems": found, "fix": artifact.repair if found else None}
        for artifact, found in checked
    ]
    lines = [
        f"{artifact.label}: {'; '.join(found)}. {artifact.repair}" if found else f"{artifact.label}: ok"
        for artifact, found in checked
    ]
    console.result(report, "\n".join(lines) or f"nothing in {store.root}")
    if any(found for _, found in checked):
        from conch_build.errors import StoreError

        click.get_current_context().exit(StoreError.exit_code)


@artifacts.command()
@click.argument("names", nargs=-1, metavar="[ARTIFACT]...")
@click.option("--all", "everything", is_flag=True, help="Remove every artifact.")
@with_console
def remove(console: Console, names: tuple[str, ...], everything: bool) -> None:
    """Delete artifacts, named as `list` shows them or by the beginning of a name. One in use is refused."""
    if bool(names) == everything:
        raise click.UsageError("Name the artifacts to remove, or give --all.")
    store = _store(console)
    chosen = store.list() if everything else [store.find(name) for name in names]
    for artifact in chosen:
        store.remove(artifact)
        console.note(f"removed {artifact.label} ({format_bytes(artifact.manifest.size_bytes)})")
    console.result({"removed": [artifact.label for artifact in chosen]})


def _store(console: Console) -> Store:
    from conch_build.store import Store

    return Store(say=console.note)


def _row(artifact: Artifact) -> tuple[str, str, str, str]:
    manifest = artifact.manifest
    size, seconds = format_bytes(manifest.size_bytes), format_seconds(manifest.seconds)
    return artifact.label, size, seconds, manifest.created.removesuffix("+00:00").replace("T", " ")
