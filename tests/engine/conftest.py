"""Fixtures of the engine's tests: engines over the toy runner, and a sink that remembers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from conch.engine import Engine, EngineConfig, Output, Request, Usage
from conch.engine.speculation import Speculation
from tests.engine.toy_runner import ToyRunner


class Answer:
    """A sink: collects the outputs of one request and waits for the last."""

    def __init__(self) -> None:
        self.outputs: list[Output] = []
        self._ended = threading.Event()

    def __call__(self, output: Output) -> None:
        assert not self._ended.is_set(), "an output after the last one"
        self.outputs.append(output)
        if output.final:
            self._ended.set()

    def wait(self, seconds: float = 60) -> Answer:
        assert self._ended.wait(seconds), "the request never ended"
        return self

    @property
    def tokens(self) -> list[int]:
        return [token for output in self.outputs for token in output.tokens]

    def of(self, index: int) -> list[int]:
        """The tokens of one of several answers."""
        return [token for output in self.outputs if output.index == index for token in output.tokens]

    @property
    def reason(self) -> str | None:
        return self.outputs[-1].finish_reason

    @property
    def error(self) -> str | None:
        error = self.outputs[-1].error
        return error and error.message

    @property
    def usage(self) -> Usage:
        usage = self.outputs[-1].usage
        assert usage is not None
        return usage


def ask(engine: Engine, request: Request) -> Answer:
    answer = Answer()
    engine.submit(request, answer)
    return answer


MakeEngine = Callable[..., Engine]


@pytest.fixture
def make_engine() -> Iterator[MakeEngine]:
    """`make_engine(runner=None, speculation=None, **config)`; every engine is closed in the end."""
    engines: list[Engine] = []

    def make(runner: Any = None, speculation: Speculation | None = None, **config: Any) -> Engine:
        config = {"max_batch_size": 8, "max_num_tokens": 32, "max_seq_len": 128, **config}
        runner = runner or ToyRunner(max_num_tokens=config["max_num_tokens"])
        engines.append(Engine(runner, EngineConfig(**config), speculation))
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()
