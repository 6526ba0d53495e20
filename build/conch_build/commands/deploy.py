"""`conch deploy compose|k8s|slurm PLAN`: the files with which a GPU machine, or several, serve what was built."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from conch_build.console import Console, with_console
from conch_build.errors import InputError

if TYPE_CHECKING:
    from conch_build.deploy import Built
    from conch_build.plan import Plan
    from conch_build.recipe import TextFile


@click.group()
def deploy() -> None:
    """Write the files with which GPU machines serve what was built."""


def _options(function: Callable[..., None]) -> Callable[..., None]:
    for option in (
        click.option("--repository", type=click.Path(path_type=Path), help="And its Triton repository."),
        click.option("--engine", type=click.Path(path_type=Path), help="An engine artifact elsewhere; builds nothing."),
        click.option("-o", "--out", type=click.Path(path_type=Path), default="deploy", show_default=True),
        click.argument("plan", type=click.Path(path_type=Path), default="conch.yaml"),
    ):
        function = option(function)
    return function


@deploy.command()
@_options
@click.option("--public", is_flag=True, help="The gateway listens on every address; it needs a key then.")
@with_console
def compose(console: Console, plan: Path, public: bool, **where: Any) -> None:
    """A compose file: Triton in NVIDIA's container and the gateway before it.

    Builds what PLAN lacks, unless --engine and --repository say where it lies on the machine that will serve it.
    """
    from conch_build.deploy import compose_files

    def make(loaded: Plan, built: Built, folder: str) -> tuple[TextFile, ...]:
        return compose_files(loaded, plan.read_text(encoding="utf-8"), built, folder, public=public)

    _write(console, plan, make, start="docker compose up -d --build --wait", **where)


@deploy.command()
@_options
@with_console
def k8s(console: Console, plan: Path, **where: Any) -> None:
    """Kubernetes: manifests, a Helm chart, and the Dockerfiles of their images.

    Builds what PLAN lacks, unless --engine and --repository say where it lies in the volume with the models.
    """
    from conch_build.deploy import kubernetes_files

    def make(loaded: Plan, built: Built, folder: str) -> tuple[TextFile, ...]:
        return kubernetes_files(loaded, plan.read_text(encoding="utf-8"), built, folder)

    _write(console, plan, make, start="kubectl apply -k manifests", **where)


@deploy.command()
@_options
@with_console
def slurm(console: Console, plan: Path, **where: Any) -> None:
    """Scripts for Slurm: one Triton whose engine spans several nodes, a rank a GPU."""
    from conch_build.deploy import slurm_files

    _write(console, plan, slurm_files, start="sbatch job.sh", **where)


def _write(
    console: Console,
    plan: Path,
    make: Callable[[Plan, Built, str], tuple[TextFile, ...]],
    *,
    out: Path,
    engine: Path | None,
    repository: Path | None,
    start: str,
) -> None:
    from conch_build.deploy import Built
    from conch_build.plan import load_plan

    if (engine is None) != (repository is None):
        raise InputError("--engine and --repository go together")
    loaded = load_plan(plan)
    folder = out.absolute()
    if engine is not None and repository is not None:
        built = Built(engine.absolute(), repository.absolute())
        files = make(loaded, built, str(folder))
    else:
        from conch_build.pipeline import build

        make(loaded, Built(folder, folder), str(folder))  # what can be refused is refused before anything is built
        result = build(loaded, say=console.note)
        files = make(loaded, Built(result.engine.path, result.repository.path), str(folder))
    for file in files:
        path = Path(file.path)
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.name == ".env":  # it holds a key
            path.touch(mode=0o600)
        path.write_text(file.text, encoding="utf-8")
    names = sorted({Path(file.path).relative_to(folder).parts[0] for file in files})
    console.result({"folder": str(folder), "files": names, "start": start}, f"{folder}\nstart: cd {out} && {start}")
