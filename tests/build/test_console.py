"""What every command shares: results, errors, exit codes, progress, lazy imports."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from importlib import import_module, metadata
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from conch_build.console import Console, LazyGroup, Progress, coloured, table, with_console
from conch_build.errors import BuildError, CheckError, DeadlineError, SetupError


@click.command()
@click.option("--fail")
@with_console
def command(console: Console, fail: str | None) -> None:
    """A command."""
    errors = {
        "build": BuildError("it broke", where="stage two", fix="Try again."),
        "check": CheckError("two problems", [{"rule": "a"}, {"rule": "b"}]),
        "setup": SetupError("no tritonserver"),
        "deadline": DeadlineError("too slow"),
    }
    if fail == "interrupt":
        raise KeyboardInterrupt
    if fail == "text":
        "\udcff".encode()
    if fail and fail.startswith("import "):
        import_module(fail.removeprefix("import "))
    if fail == "metadata":
        metadata.version("nvidia-modelopt")
    if fail == "disk":
        raise OSError(28, "No space left on device", "/some/file")
    if fail:
        raise errors[fail]
    console.note("working")
    console.result({"answer": 42}, "the answer is 42")


def test_results_go_to_stdout_and_notes_to_stderr() -> None:
    done = CliRunner().invoke(command)
    assert (done.stdout, done.stderr, done.exit_code) == ("the answer is 42\n", "working\n", 0)


def test_json_is_the_only_thing_on_stdout() -> None:
    done = CliRunner().invoke(command, ["--json"])
    assert json.loads(done.stdout) == {"answer": 42}


@pytest.mark.parametrize(("kind", "code"), [("build", 3), ("check", 2), ("setup", 4), ("deadline", 6)])
def test_an_error_is_one_line_and_its_own_exit_code(kind: str, code: int) -> None:
    done = CliRunner().invoke(command, ["--fail", kind])
    assert done.exit_code == code
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr


def test_an_error_says_what_where_and_the_fix() -> None:
    assert CliRunner().invoke(command, ["--fail", "build"]).stderr == "error: stage two: it broke. Try again.\n"


def test_with_json_an_error_is_json_on_stdout() -> None:
    done = CliRunner().invoke(command, ["--json", "--fail", "check"])
    error = json.loads(done.stdout)
    assert (error["error"], error["exit_code"], len(error["violations"])) == ("CheckError", 2, 2)
    assert done.exit_code == 2


def test_a_full_disk_is_told_without_a_traceback() -> None:
    done = CliRunner().invoke(command, ["--fail", "disk"])
    assert (done.exit_code, done.stderr) == (4, "error: /some/file: No space left on device\n")


def test_a_library_of_an_extra_that_is_missing_is_told_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    done = CliRunner().invoke(command, ["--fail", "import torch"])
    assert (done.exit_code, done.stderr) == (
        4,
        "error: `torch` is missing. pip install '.[build]' in Conch's checkout\n",
    )


def test_a_distribution_of_an_extra_that_is_missing_is_told_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    done = CliRunner().invoke(command, ["--fail", "metadata"])
    assert done.exit_code == 4
    assert "`nvidia-modelopt` is missing. pip install '.[build]'" in done.stderr


def test_a_module_that_no_extra_brings_is_a_fault_of_conch() -> None:
    assert isinstance(CliRunner().invoke(command, ["--fail", "import no_such_module"]).exception, ImportError)


def test_an_argument_that_is_not_utf8_is_told_without_a_traceback() -> None:
    done = CliRunner().invoke(command, ["--fail", "text"])
    assert (done.exit_code, done.stderr) == (2, "error: an argument holds bytes that are not UTF-8 text\n")


def test_ctrl_c_exits_with_130() -> None:
    assert CliRunner().invoke(command, ["--fail", "interrupt"]).exit_code == 130


def test_a_reader_that_leaves_is_no_error() -> None:
    code = (
        "import click; from conch_build.console import *\n"
        "@click.command()\n@with_console\ndef big(console):\n"
        "    for _ in range(20000): console.result({}, 'x' * 80)\n"
        "big()\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert child.stdout is not None and child.stderr is not None
    child.stdout.readline()
    child.stdout.close()
    assert (child.stderr.read(), child.wait()) == (b"", 0)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_colour_needs_a_terminal_and_no_color_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert coloured(Terminal()) and not coloured(io.StringIO())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not coloured(Terminal())


def test_progress_on_a_terminal_is_a_bar_with_eta() -> None:
    stream = Terminal()
    with Progress("calibrating", 4, stream=stream) as progress:
        assert progress.eta_seconds() is None
        time.sleep(0.15)
        progress.advance(2)
        assert progress.eta_seconds() == pytest.approx(0.15, abs=0.14)
        progress.advance(2)
    assert "calibrating [############............] 2/4 (50%" in stream.getvalue()
    assert stream.getvalue().endswith(" ms\n")


def test_progress_without_a_terminal_is_a_line_at_the_end() -> None:
    stream = io.StringIO()
    with Progress("exporting", 1000, stream=stream) as progress:
        for _ in range(1000):
            progress.advance()
    assert stream.getvalue().startswith("exporting: 1000/1000 in ")
    assert stream.getvalue().count("\n") == 1


def test_progress_that_is_left_early_says_so() -> None:
    stream = io.StringIO()
    with pytest.raises(ValueError), Progress("exporting", 3, stream=stream):
        raise ValueError
    assert "0/3" in stream.getvalue() and "stopped" in stream.getvalue()


def test_progress_of_nothing_does_not_divide_by_zero() -> None:
    with Progress("nothing", 0, stream=Terminal()) as progress:
        progress.advance(0)


def test_a_table_is_aligned() -> None:
    assert table(["name", "n"], [["a", 1], ["long one", 22]]) == "name      n\na         1\nlong one  22"


def test_help_of_a_lazy_group_imports_no_command() -> None:
    group = LazyGroup("conch", lazy={"ghost": ("no.such.module:command", "Says boo.")})
    shown = CliRunner().invoke(group, ["--help"])
    assert shown.exit_code == 0
    assert "ghost  Says boo." in shown.output


def test_help_of_the_build_commands_is_quick() -> None:
    code = (
        "import sys; from conch_build.cli import build_commands\n"
        "build_commands(['--help'], standalone_mode=False)\n"
        "assert not {'torch', 'numpy', 'transformers', 'openvino'} & set(sys.modules)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "build")}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in ("init", "check", "build", "artifacts", "schema"))
