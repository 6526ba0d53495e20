"""What libraries print: to the log, or to stderr on request, never to stdout."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest

from conch_build.quiet import quiet


def test_prints_and_loggers_go_to_the_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("talkative")
    handler = logging.StreamHandler(sys.stderr)
    logger.addHandler(handler)
    try:
        with quiet(tmp_path / "logs" / "build.log"):
            print("printed")
            logger.warning("logged")
        assert capsys.readouterr() == ("", "")
        assert (tmp_path / "logs" / "build.log").read_text().splitlines() == ["printed", "logged"]
        logger.warning("afterwards")
        assert capsys.readouterr() == ("", "afterwards\n")
    finally:
        logger.removeHandler(handler)


def test_without_a_log_everything_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    with quiet(None):
        print("printed")
    assert capsys.readouterr() == ("", "printed\n")
