"""`conch gpu-check`: try everything that needs a GPU on this machine, and write one report to send back."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path

import click

from conch_build.console import Console, with_console
from conch_build.errors import ServiceError, SetupError

BACKENDS = ("tensorrt", "pytorch")


@click.command("gpu-check")
@click.option("--model", default="sample", show_default=True, help="A checkpoint, as a plan names it.")
@click.option("--backend", "backends", multiple=True, type=click.Choice(BACKENDS), help="Only this; may be repeated.")
@click.option("--format", "formats", multiple=True, default=("none",), help="Quantization; may be repeated.")
@click.option("-o", "--out", type=click.Path(path_type=Path), help="Folder of the report and all logs.")
@click.option("--no-compare", is_flag=True, help="Leave the CPU engine out: for models that are too large for it.")
@click.option("--gpu-conch", help="The `conch` whose Python has TensorRT-LLM, if it is another than this one.")
@with_console
def gpu_check(
    console: Console,
    model: str,
    backends: tuple[str, ...],
    formats: tuple[str, ...],
    out: Path | None,
    no_compare: bool,
    gpu_conch: str | None,
) -> None:
    """Run the chain from plan to chat on every GPU backend and compare its answers with the CPU engine's.

    Needs nobody: a step that fails is written down and the next one follows. Exits with 0 when all GPU engines
    answer, 4 where there is nothing to try them on, 5 when a step failed.
    """
    from conch.gpu_check import report
    from conch.gpu_check.day import Choice, Day
    from conch_build.files import home

    conch = (sys.executable, "-m", "conch.cli")
    theirs = tuple(shlex.split(gpu_conch)) if gpu_conch else conch
    python = str(Path(theirs[0]).with_name("python")) if gpu_conch else sys.executable
    choice = Choice(model, backends or BACKENDS, formats, conch, theirs, python, not no_compare)
    folder = (out or home() / "gpu-check" / time.strftime("%Y%m%d-%H%M%S")).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "report.md"
    day = Day(choice, folder, console.note, lambda: report.write(day, path))
    try:
        day.run()
    finally:
        report.write(day, path)
        line = report.summary(day)
        console.result({"report": str(path), **report.as_dict(day)}, f"{line}\nreport: {path}")
    if day.machine is None or day.machine.means is None:
        sys.exit(SetupError.exit_code)
    if day.journal.count("failed") or day.journal.count("skipped"):
        sys.exit(ServiceError.exit_code)
