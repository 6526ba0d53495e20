"""The `tensorrt_llm` model: Triton requests into the engine, its outputs back as responses.

Four threads meet here: Triton's calls `execute`, the engine's puts outputs into a queue and never waits, one
sends them, and one asks Triton which callers have gone and keeps the metrics. Others, started when they are needed,
wait for adapters to be loaded and for the KV blocks of prompts that were read elsewhere.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb

from conch.backend.adapters import Command, carry_out, decode_command
from conch.backend.arrays import arrays, parameters, tagged
from conch.backend.feeds import Feed, Feeds, check_fed, feed_of
from conch.backend.handover import Handover
from conch.backend.metrics import EngineMetrics
from conch.backend.responses import Answer, Response
from conch.backend.tensors import Call, decode_call, is_stop
from conch.engine.request import Output
from conch_build.errors import ConchError


@dataclass
class _Flight:
    """A request that is being answered."""

    caller_id: str
    call: Call
    sender: Any
    wanted: frozenset[str]
    feed: Feed | None = None
    """Where its tokens go, and as which stream there; only the last response is its own."""
    stream: int = 0
    error: ConchError | None = None
    """Of one answer; the others are given up."""
    answers: dict[int, Answer] = field(default_factory=dict)
    """Those that have begun: how many a caller wants is checked by the engine, and may be any number until then."""


class GenerationModel:
    """Triton's interface; `load_engine` is the one thing that another engine would change."""

    @staticmethod
    def load_engine(folder: Path, model: Path) -> Any:
        """An engine as `conch.engine.Engine` has it, ready to work; `model` is this model in the repository."""
        from conch.engine import Engine
        from conch_build.adapter_registry import AdapterRegistry

        return Engine.load(folder, AdapterRegistry.load(model))

    def initialize(self, args: dict[str, str]) -> None:
        config = parameters(args)
        self._exclude_input = config["exclude_input_in_output"] == "true"
        self._cancel_period = int(config["cancellation_check_period_ms"]) / 1000
        self._stream_interval = int(config["stream_interval"])
        self._stats_period = int(config["stats_check_period_ms"]) / 1000
        self._flights: dict[str, _Flight] = {}
        self._feeds = Feeds()
        self._fed: set[Feed] = set()  # those with tokens that are not sent yet
        # Held to ask whether a caller has gone and to take a flight out: Triton frees what such a question
        # reads as soon as the final response is sent, and would crash over one still being asked.
        self._asking = threading.Lock()
        self._numbers = itertools.count()
        self._outputs: queue.SimpleQueue[Output | None] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._started = False
        self._engine = self.load_engine(Path(config["gpt_model_path"]), Path(args["model_repository"]))
        self._adapters = {state.id: state.name for state in self._engine.adapters()}
        self._commands = ThreadPoolExecutor(1, "conch-commands")
        self._handover = Handover(self._engine)
        labels = {"model": args["model_name"], "version": args["model_version"]}
        self._metrics = EngineMetrics(pb.MetricFamily, labels)
        self._threads = [
            threading.Thread(target=work, name=f"conch-{work.__name__.strip('_')}", daemon=True)
            for work in (self._send, self._watch)
        ]

    def execute(self, requests: list[Any]) -> None:
        if not self._started:  # not before: Triton must not be asked anything while it still loads the model
            self._started = True
            for thread in self._threads:
                thread.start()
        for request in requests:
            sender = request.get_response_sender()
            try:
                self._accept(request, sender)
            except ConchError as error:
                _refuse(sender, tagged(error))

    def finalize(self) -> None:
        self._closing.set()
        self._engine.close()
        self._commands.shutdown()
        self._handover.close()
        self._outputs.put(None)
        if self._started:
            for thread in self._threads:
                thread.join(timeout=5)
        del self._metrics  # the stub that they speak through is torn down before this object is

    def _accept(self, request: Any, sender: Any) -> None:
        inputs = arrays(request)
        caller_id = request.request_id()
        if is_stop(inputs):
            self._stop(caller_id, sender)
            return
        if command := decode_command(inputs, self._adapters):
            self._commands.submit(self._carry_out, command, sender)
            return
        feed = feed_of(inputs)
        if feed is not None and feed[1] is None:
            self._feeds.open(feed[0], sender)
            return
        call = decode_call(
            inputs,
            request_id=f"{caller_id}#{next(self._numbers)}",
            exclude_input=self._exclude_input,
            adapters=self._adapters,
        )
        wanted = frozenset(request.requested_output_names())
        flight = _Flight(caller_id, call, sender, wanted)
        if feed is not None and call.streaming:
            check_fed(call)
            flight.feed, flight.stream = self._feeds.get(feed[0]), feed[1] or 0
        self._flights[call.request.id] = flight
        if call.context_phase:
            self._handover.take_over(call, self._outputs.put)
            return
        try:
            self._engine.submit(call.request, self._outputs.put)
        except ConchError:
            self._land(call.request.id)
            raise

    def _answer(self, flight: _Flight, index: int) -> Answer:
        if index not in flight.answers:
            flight.answers[index] = Answer(flight.call, index, self._stream_interval)
        return flight.answers[index]

    def _stop(self, caller_id: str, sender: Any) -> None:
        """End the requests of that id. With none it only shows that the engine is alive."""
        if not (self._engine.healthy() and all(thread.is_alive() for thread in self._threads)):
            _refuse(sender, "[UnavailableError] the engine has stopped making progress")
            return
        for engine_id, flight in list(self._flights.items()):
            if caller_id and flight.caller_id == caller_id:
                self._engine.cancel(engine_id)
        tensors = {
            "output_ids": np.empty((1, 1, 0), np.int32),
            "sequence_length": np.zeros((1, 1), np.int32),
            "conch_finish_reason": np.array([[""]], np.object_),
        }
        _respond(sender, Response(tensors, final=True), frozenset(tensors))

    def _carry_out(self, command: Command, sender: Any) -> None:
        try:
            response = carry_out(command, self._engine)
        except ConchError as error:
            _refuse(sender, tagged(error))
        else:
            _respond(sender, response, frozenset(response.tensors))

    def _send(self) -> None:
        while (output := self._outputs.get()) is not None:
            self._deliver(output)
            if self._outputs.empty():  # a step's outputs come together
                self._send_feeds()

    def _deliver(self, output: Output) -> None:
        flight = self._flights[output.request_id]
        if flight.feed is not None and output.finish_reason is None:
            self._feed(flight.feed, flight, output)
            return
        answer = self._answer(flight, output.index)
        if output.state is not None and output.finish_reason == "length":  # else there is nothing to go on with
            answer.context_phase, output = self._handover.keep(output)
        response = answer.add(output)
        if response is None:
            return
        flight.error = flight.error or response.error
        if response.final:
            self._land(output.request_id)
            response = replace(response, error=flight.error)
        elif flight.error is not None:
            self._engine.cancel(output.request_id)
            return
        try:
            _respond(flight.sender, response, flight.wanted)
        except pb.TritonModelException as error:  # one caller's trouble must not silence the others
            pb.Logger.log_error(f"request {output.request_id}: {error}")
            self._engine.cancel(output.request_id)

    def _feed(self, feed: Feed, flight: _Flight, output: Output) -> None:
        if feed.closed:
            self._engine.cancel(output.request_id)
        elif tokens := self._answer(flight, 0).take(output):
            feed.add(flight.stream, tokens)
            self._fed.add(feed)

    def _send_feeds(self) -> None:
        for feed in self._fed:
            tensors = feed.take()
            with feed.lock:
                if feed.closed:
                    continue
                try:
                    _respond(feed.sender, Response(tensors, final=False), frozenset(tensors))
                except pb.TritonModelException as error:
                    pb.Logger.log_error(f"feed {feed.name}: {error}")
        self._fed.clear()

    def _close_if_left(self, feed: Feed) -> None:
        """End the feed of a caller who has gone: Triton waits for its last response."""
        with feed.lock:
            if feed.sender.is_cancelled():
                self._feeds.close(feed)
                feed.sender.send(flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def _land(self, engine_id: str) -> None:
        """Take a flight out, before its final response is sent."""
        with self._asking:
            del self._flights[engine_id]

    def _watch(self) -> None:
        next_update = 0.0
        while not self._closing.wait(self._cancel_period):
            for engine_id in list(self._flights):
                if self._is_cancelled(engine_id):
                    self._engine.cancel(engine_id)
            for feed in self._feeds:
                self._close_if_left(feed)
            if time.monotonic() >= next_update:
                self._metrics.update(self._engine.stats(), self._handover.figures())
                next_update = time.monotonic() + self._stats_period

    def _is_cancelled(self, engine_id: str) -> bool:
        with self._asking:
            flight = self._flights.get(engine_id)
            return flight is not None and bool(flight.sender.is_cancelled())


def _respond(sender: Any, response: Response, wanted: frozenset[str]) -> None:
    if response.error is not None:
        _refuse(sender, tagged(response.error))
        return
    tensors = [pb.Tensor(name, array) for name, array in response.tensors.items() if name in wanted]
    flags = pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL if response.final else 0
    sender.send(pb.InferenceResponse(tensors), flags=flags)


def _refuse(sender: Any, message: str) -> None:
    response = pb.InferenceResponse(output_tensors=[], error=pb.TritonError(message))
    sender.send(response, flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
