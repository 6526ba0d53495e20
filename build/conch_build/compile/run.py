"""Run a recipe: each command inside its image or, where the tools are on PATH, on this machine.

Says a line when a step starts and ends, and what the tool tells of its progress between; every line that a tool prints
goes to the log. Whatever ends a run ends its children. Knows nothing of what the commands do.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import IO

from conch_build.compile.container import EXAMPLES, docker_argv
from conch_build.compile.failures import explain
from conch_build.errors import BuildError, SetupError
from conch_build.files import home
from conch_build.recipe import Command, Recipe, TextFile
from conch_build.units import format_seconds

Say = Callable[[str], None]

EXAMPLES_VARIABLE = "CONCH_TRTLLM_EXAMPLES"
"""Where TensorRT-LLM's scripts are on this machine, if not where its image has them."""

_PRINTED = "`conch build --dry-run` prints the commands."

_PROGRESS_SECONDS = 10.0
_GRACE_SECONDS = 5.0
_TAIL_LINES = 200

_PROGRESS = (
    (re.compile(r"(\d+)%\|[^|]*\|\s*(\d+/\d+)"), r"\2"),
    (re.compile(r"Loading checkpoint shards.*?(\d+/\d+)"), r"shard \1"),
    (re.compile(r"Calibrating batch (\d+)"), r"calibration batch \1"),
    (re.compile(r"Serializing engine to .*?rank(\d+)\.engine"), r"rank \1 is written"),
    (re.compile(r"Quantization done"), "quantized"),
    (re.compile(r"Weights loaded"), "weights are loaded"),
)
"""What the tools print on their way, and how it is told."""


@dataclasses.dataclass(frozen=True)
class Place:
    """Where commands run. `docker`: in their images; else on this machine, whose scripts lie in `examples`."""

    docker: bool
    examples: Path = Path(EXAMPLES)
    read: tuple[Path, ...] = ()
    """What a container must see beside what it writes."""
    write: tuple[Path, ...] = ()


def place_for(recipe: Recipe, *, read: Sequence[Path] = (), write: Sequence[Path] = ()) -> Place:
    """Where the recipe can run: here, if its tools are; else in containers. Raises SetupError where neither can be."""
    examples = Path(os.environ.get(EXAMPLES_VARIABLE) or EXAMPLES)
    missing = sorted(_missing(recipe, examples))
    if not missing:
        return Place(docker=False, examples=examples)
    if not shutil.which("docker"):
        raise SetupError(
            f"this machine has neither docker nor {', '.join(missing)}",
            fix=f"Run it on a GPU machine with docker or TensorRT-LLM; {_PRINTED}",
        )
    asked = subprocess.run(["docker", "version"], capture_output=True, text=True, check=False)
    if asked.returncode:
        what, fix = explain(asked.stderr) or (f"docker does not answer: {asked.stderr.strip()}", "Start it.")
        raise SetupError(f"this machine has no {', '.join(missing)}, and {what}", fix=f"{fix} Or else {_PRINTED}")
    return Place(docker=True, read=tuple(read), write=tuple(write))


def run(recipe: Recipe, place: Place, log: Path, *, say: Say = lambda text: None) -> None:
    """Run every step in order; `log` takes all output, after what it holds.

    Raises BuildError with what is known of a failure and where the log is; an interrupt ends the children first.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8", buffering=1) as file, _terminated_as_interrupted():
        for step in recipe.steps:
            if isinstance(step, TextFile):
                Path(step.path).parent.mkdir(parents=True, exist_ok=True)
                Path(step.path).write_text(step.text, encoding="utf-8")
            else:
                _run(step, place, file, log, say)


def _run(command: Command, place: Place, file: IO[str], log: Path, say: Say) -> None:
    argv, name = _argv(command, place)
    file.write(f"\n# {command.title}\n# {' '.join(argv)}\n")
    say(f"{command.title} ...")
    started = time.monotonic()
    tail: deque[str] = deque(maxlen=_TAIL_LINES)
    told = started
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, **command.env, "PYTHONUNBUFFERED": "1"},
            cwd=_workdir(),
            start_new_session=True,
        )
    except OSError as error:
        raise SetupError(f"cannot be started: {error.strerror}", where=argv[0]) from None
    try:
        for line in _lines(process):
            file.write(line + "\n")
            tail.append(line)
            progress, now = _progress(line), time.monotonic()
            if progress and now - told >= _PROGRESS_SECONDS:
                told = now
                say(f"{command.title}: {progress} ({format_seconds(now - started)})")
        code = process.wait()
    except BaseException:
        _end(process, name)
        raise
    seconds = format_seconds(time.monotonic() - started)
    if code:
        known = explain("\n".join(tail), code)
        last = next((line for line in reversed(tail) if line.strip()), "nothing was printed")
        what, fix = known or (f"ended with exit code {code}: {last.strip()}", "")
        raise BuildError(f"{what} (after {seconds})", where=command.title, fix=f"{fix} The log: {log}".strip())
    say(f"{command.title}: done in {seconds}")


def _argv(command: Command, place: Place) -> tuple[list[str], str | None]:
    """What is started, and the name of the container if it is one."""
    if command.image is None:
        first = sys.executable if command.argv[0] == "python3" else command.argv[0]
        return [first, *command.argv[1:]], None
    if place.docker:
        name = f"conch-{uuid.uuid4().hex[:12]}"
        argv = docker_argv(
            command.image,
            command.argv,
            name=name,
            read=place.read,
            write=place.write,
            workdir=_workdir(),
            env=command.env,
        )
        return argv, name
    return [_here(word, place.examples) for word in command.argv], None


def _here(word: str, examples: Path) -> str:
    return f"{examples}{word.removeprefix(EXAMPLES)}" if word.startswith(f"{EXAMPLES}/") else word


def _missing(recipe: Recipe, examples: Path) -> set[str]:
    """Programs, scripts and packages of images that this machine has not."""
    inside = [command for command in recipe.commands if command.image is not None]
    words = [word for command in inside for word in command.argv if word.startswith(f"{EXAMPLES}/")]
    missing = {command.argv[0] for command in inside if shutil.which(command.argv[0]) is None}
    missing |= {Path(word).name for word in words if not Path(_here(word, examples)).is_file()}
    if any(command.argv[0] == "python3" for command in inside) and not _has_package():
        missing.add("tensorrt_llm (of python3)")
    return missing


def _has_package() -> bool:
    """Whether the python3 that commands find has TensorRT-LLM; it need not be the one that runs Conch."""
    asks = "import importlib.util, sys; sys.exit(importlib.util.find_spec('tensorrt_llm') is None)"
    try:
        return subprocess.run(["python3", "-c", asks], capture_output=True, cwd=_workdir(), check=False).returncode == 0
    except OSError:
        return False


def _workdir() -> Path:
    """A directory of Conch's own: in that of TensorRT-LLM's sources its package would not be found."""
    folder = home() / "work"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _lines(process: subprocess.Popen[bytes]) -> Iterator[str]:
    """Lines as they come; progress bars end theirs with a carriage return."""
    assert process.stdout is not None
    rest, more = b"", True
    while more:
        ready, _, _ = select.select([process.stdout], [], [], 1.0)
        chunk = os.read(process.stdout.fileno(), 1 << 16) if ready else b""
        # What a command leaves running may hold the pipe open for ever.
        more = bool(chunk) if ready else process.poll() is None
        *lines, rest = re.split(rb"[\r\n]+", rest + chunk)
        for line in lines:
            yield line.decode("utf-8", "replace")
    if rest:
        yield rest.decode("utf-8", "replace")


def _progress(line: str) -> str | None:
    for pattern, told in _PROGRESS:
        if found := pattern.search(line):
            return found.expand(told)
    return None


def _end(process: subprocess.Popen[bytes], container: str | None) -> None:
    """End a command with all that it has started."""
    if container is not None:
        subprocess.run(["docker", "kill", container], capture_output=True, check=False)
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_SECONDS)


@contextlib.contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """SIGTERM ends the run as Ctrl-C does, so that no child outlives it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
