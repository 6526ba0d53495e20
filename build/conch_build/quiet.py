"""Libraries that talk too much: what they print goes to a log file instead of the person's terminal."""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO


@contextlib.contextmanager
def quiet(log: Path | None) -> Iterator[None]:
    """Python's stdout, stderr and the loggers that write there go to the end of `log`; with None, to stderr.

    stdout never gets any: it belongs to results. A `Progress` made before stays visible.
    """
    target = sys.stderr if log is None else _opened(log)
    handlers = [handler for handler in _handlers() if handler.stream is sys.stderr]
    for handler in handlers:
        handler.setStream(target)
    stderr = sys.stderr
    try:
        with contextlib.redirect_stdout(target), contextlib.redirect_stderr(target):
            yield
    finally:
        for handler in handlers:
            handler.setStream(stderr)


def _handlers() -> Iterator[logging.StreamHandler[Any]]:
    for logger in [logging.root, *logging.root.manager.loggerDict.values()]:
        if isinstance(logger, logging.Logger):
            yield from (h for h in logger.handlers if isinstance(h, logging.StreamHandler))


@functools.cache
def _opened(log: Path) -> TextIO:
    # Never closed: loggers that are created meanwhile keep it as their stderr.
    log.parent.mkdir(parents=True, exist_ok=True)
    return log.open("a", encoding="utf-8", buffering=1)
