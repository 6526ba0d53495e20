"""What every command shares: one place for results, notes, progress, errors and exit codes.

Results go to stdout (text, or one JSON value with `--json`); notes, progress and errors go to stderr, but
with `--json` the error is that one JSON value. Knows nothing of plans or models.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import TracebackType
from typing import Any, TextIO

import click

from conch_build.errors import ConchError, InputError, SetupError
from conch_build.extras import lacking
from conch_build.units import format_seconds

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it: 128 + SIGINT."""


@dataclass(frozen=True)
class Console:
    """Where a command writes. `as_json`: stdout carries one JSON value and nothing else."""

    as_json: bool = False

    def result(self, data: Any, text: str | None = None) -> None:
        """Print what the command found: `data` as JSON, or `text` (if any) for people."""
        if self.as_json:
            click.echo(json.dumps(data, indent=2, default=str))
        elif text is not None:
            click.echo(text, color=coloured(sys.stdout))

    def note(self, text: str) -> None:
        """Tell a person what is going on."""
        click.echo(text, err=True, color=coloured(sys.stderr))

    def failure(self, error: ConchError) -> None:
        if self.as_json:
            click.echo(json.dumps({**error.as_dict(), "exit_code": error.exit_code}, indent=2, default=str))
        else:
            self.note(f"{click.style('error:', fg='red', bold=True)} {error.message}")


def with_console(function: Callable[..., None]) -> Callable[..., None]:
    """Give a click command `--json`, a `Console` as its first argument, and the exit codes of the error tree.

    Innermost of the decorators: `@click.command()`, its options, `@with_console`, the function.
    """

    @click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on stdout.")
    @functools.wraps(function)
    def wrapper(*args: Any, as_json: bool, **options: Any) -> None:
        console = Console(as_json)
        try:
            function(console, *args, **options)
            sys.stdout.flush()
        except ConchError as error:
            console.failure(error)
            sys.exit(error.exit_code)
        except KeyboardInterrupt:
            console.note("interrupted")
            sys.exit(INTERRUPTED)
        except UnicodeEncodeError:  # bytes of the command line that are no UTF-8 come as lone surrogates
            wrong = InputError("an argument holds bytes that are not UTF-8 text")
            console.failure(wrong)
            sys.exit(wrong.exit_code)
        except BrokenPipeError:
            # The reader (`| head`) has left. Python would complain again when it flushes stdout at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(0)
        except ImportError as error:
            missing = lacking(error)
            if missing is None:
                raise
            console.failure(missing)
            sys.exit(missing.exit_code)
        except OSError as error:  # a full disk, a folder that may not be written: the machine's, not a bug's
            failure = SetupError(error.strerror or str(error), where=error.filename and str(error.filename))
            console.failure(failure)
            sys.exit(failure.exit_code)

    return wrapper


class LazyGroup(click.Group):
    """A group that imports a command only to run it; `lazy`: name -> (`module:attribute`, short help)."""

    def __init__(self, *args: Any, lazy: Mapping[str, tuple[str, str]] | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self.lazy = dict(lazy or {})

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self.lazy, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.lazy:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = self.lazy[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, short) for name, (_, short) in self.lazy.items()]
        for name in super().list_commands(ctx):
            rows.append((name, self.commands[name].get_short_help_str(limit=80)))
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)


class Progress:
    """A progress bar with ETA on stderr; without a terminal a line now and then.

    `with Progress("calibrating", 64) as progress: ... progress.advance()`
    """

    LINE_SECONDS = 10.0
    REDRAW_SECONDS = 0.1

    def __init__(self, label: str, total: int, *, stream: TextIO | None = None) -> None:
        self.label = label
        self.total = total
        self.done = 0
        self._stream = stream or sys.stderr
        self._terminal = self._stream.isatty()
        self._started = self._shown = time.monotonic()

    def __enter__(self) -> Progress:
        if self._terminal:
            self._write(self._bar())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        seconds = format_seconds(time.monotonic() - self._started)
        end = "" if self.done >= self.total and kind is None else " (stopped)"
        self._write(f"{self.label}: {self.done}/{self.total} in {seconds}{end}", last=True)

    def advance(self, n: int = 1) -> None:
        """Count `n` more done; draws at most ten times a second."""
        self.done += n
        now = time.monotonic()
        if now - self._shown >= (self.REDRAW_SECONDS if self._terminal else self.LINE_SECONDS):
            self._shown = now
            self._write(self._bar() if self._terminal else f"{self.label}: {self._counts()}")

    def eta_seconds(self) -> float | None:
        """Seconds left at the mean pace so far; None before the first step."""
        if not self.done:
            return None
        return (time.monotonic() - self._started) / self.done * max(self.total - self.done, 0)

    def _counts(self) -> str:
        eta = self.eta_seconds()
        left = f", {format_seconds(eta)} left" if eta is not None else ""
        return f"{self.done}/{self.total} ({100 * self.done // max(self.total, 1)}%{left})"

    def _bar(self) -> str:
        filled = 24 * min(self.done, self.total) // max(self.total, 1)
        return f"{self.label} [{'#' * filled}{'.' * (24 - filled)}] {self._counts()}"

    def _write(self, text: str, *, last: bool = False) -> None:
        if self._terminal:
            text = f"\r\x1b[K{text}"
        self._stream.write(text + ("\n" if last or not self._terminal else ""))
        self._stream.flush()


def table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Columns aligned by spaces, the last one ragged."""
    lines = [list(headers), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headers))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def coloured(stream: TextIO) -> bool:
    """Colour only on a terminal, and never when NO_COLOR is set (https://no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR")
