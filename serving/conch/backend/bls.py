"""The `tensorrt_llm_bls` model: text to text by asking the other models, with streams, cancelling and a draft model.

Each request runs on a thread of its own; one more asks Triton which callers have gone. Its text is the ensemble's.
"""

from __future__ import annotations

import itertools
import threading
import uuid
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import triton_python_backend_utils as pb
from numpy.typing import NDArray

from conch.backend import bls_draft, bls_tensors
from conch.backend.arrays import Arrays, arrays, output_names, parameters, tagged
from conch.backend.bls_tensors import Tensors, flag, number
from conch.text import WINDOW
from conch_build.errors import ConchError, RequestError

_THREADS = 28
"""Triton's python backend lets an instance have 32 requests open inside; some are for texts and for stopping."""
_IDS = ("output_ids", "sequence_length")
_NEEDED = frozenset({"conch_finish_reason", "sequence_index", "generation_logits"})
"""Outputs of the engine that are wanted here, whatever the caller wants."""


@dataclass
class _Flight:
    """A request that is being answered. `id` is that of its requests inside."""

    id: str
    sender: Any
    wanted: frozenset[str]
    asked: bool = False
    """The engine has been asked."""
    left: bool = False
    """Its caller has gone."""
    seen: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    """Last ids of each sequence of a stream whose end has not come."""


class _AskedError(Exception):
    """A model that was asked answers with an error, which is passed on as it is."""


class BlsModel:
    """Triton's interface."""

    def initialize(self, args: dict[str, str]) -> None:
        config = parameters(args)
        self._target = config.get("tensorrt_llm_model_name", "tensorrt_llm")
        self._draft = config.get("tensorrt_llm_draft_model_name", "")
        self._accumulate = config.get("accumulate_tokens") == "true"
        self._period = int(config.get("cancellation_check_period_ms", "100")) / 1000
        self._outputs = [name for name in output_names(args) if name != "text_output"]
        self._flights: dict[str, _Flight] = {}
        self._asking = threading.Lock()  # as in `generation`: Triton must not be asked about what is being ended
        self._numbers = itertools.count()
        self._prefix = uuid.uuid4().hex
        self._pool = ThreadPoolExecutor(_THREADS, "conch-bls")
        self._closing = threading.Event()
        self._watcher: threading.Thread | None = None

    def execute(self, requests: list[Any]) -> None:
        if self._watcher is None:  # not before: Triton must not be asked anything while it still loads the model
            self._watcher = threading.Thread(target=self._watch, name="conch-bls-watch", daemon=True)
            self._watcher.start()
        for request in requests:
            wanted = frozenset(request.requested_output_names())
            flight = _Flight(f"{self._prefix}-{next(self._numbers)}", request.get_response_sender(), wanted)
            self._flights[flight.id] = flight
            self._pool.submit(self._answer, flight, _copied(arrays(request)))

    def finalize(self) -> None:
        self._closing.set()
        self._pool.shutdown()
        if self._watcher is not None:
            self._watcher.join(timeout=5)

    def _answer(self, flight: _Flight, inputs: Arrays) -> None:
        """One request from its first tensor to its final flag, whatever happens."""
        held: Tensors | None = None
        try:
            streaming = flag(inputs, "stream")
            for response in self._responses(flight, bls_tensors.checked(inputs)):
                if held is not None:
                    self._send(flight, held)
                held = response
                if streaming and not _ends(response):
                    self._send(flight, held)
                    held = None
            self._land(flight, held)
        except ConchError as error:
            self._land(flight, error=tagged(error))
        except (_AskedError, pb.TritonModelException) as error:
            self._land(flight, error=str(error))
        except Exception as error:  # of ours: it must not leave a caller waiting for ever
            pb.Logger.log_error(f"bls request {flight.id}: {error!r}")
            self._land(flight, error=f"[ConchError] {error!r}")

    def _responses(self, flight: _Flight, inputs: Tensors) -> Iterator[Tensors]:
        encoded = self._ask("preprocessing", flight, bls_tensors.to_preprocessing(inputs), bls_tensors.PREPROCESSED)
        asked = bls_tensors.to_engine(inputs, encoded)
        if "num_draft_tokens" in inputs and number(inputs, "num_draft_tokens"):
            yield self._with_text(flight, self._speculated(flight, inputs, asked), streaming=False)
            return
        streaming = flag(asked, "streaming")
        for given in self._ask_engine(self._target, flight, asked):
            yield self._with_text(flight, given, streaming=streaming and self._accumulate)
        yield from self._held_back(flight)

    def _speculated(self, flight: _Flight, inputs: Tensors, asked: Tensors) -> Tensors:
        if not self._draft:
            raise RequestError("`num_draft_tokens`: no draft model is served here", param="num_draft_tokens")
        count, logits = number(inputs, "num_draft_tokens"), flag(inputs, "use_draft_logits")
        draft, target = (partial(self._one, model, flight) for model in (self._draft, self._target))
        return bls_draft.speculate(asked, count, draft, target, logits=logits)

    def _with_text(self, flight: _Flight, given: Arrays, *, streaming: bool) -> Tensors:
        """A response of the engine with its text; a piece of a stream has what its ids settle."""
        ids, lengths = (given[name] for name in _IDS)
        before, last = None, False
        if streaming:
            sequence = number(given, "sequence_index")
            before = list(flight.seen[sequence])
            new = ids.ravel()[: number(given, "sequence_length")].tolist()
            flight.seen[sequence] = [*before, *new][-WINDOW:]
            if last := _ends(given):
                del flight.seen[sequence]
        text = self._text(flight, bls_tensors.to_postprocessing(ids, lengths, before, last=last))
        return {**{name: array for name, array in given.items() if name not in _IDS}, "text_output": text}

    def _held_back(self, flight: _Flight) -> Iterator[Tensors]:
        """The last characters of streams whose end the engine has not told with its last tokens."""
        for sequence, before in flight.seen.items():
            nothing, length = np.empty((1, 1, 0), np.int32), np.zeros((1, 1), np.int32)
            text = self._text(flight, bls_tensors.to_postprocessing(nothing, length, before, last=True))
            if text.ravel()[0]:
                index = np.array([[sequence]], np.int32)
                yield {"text_output": text, "batch_index": np.zeros((1, 1), np.int32), "sequence_index": index}

    def _text(self, flight: _Flight, tensors: Tensors) -> NDArray[Any]:
        return self._ask("postprocessing", flight, tensors, ("OUTPUT",))["OUTPUT"]

    def _one(self, model: str, flight: _Flight, tensors: Tensors) -> Arrays:
        """The only response of the engine."""
        given = list(self._ask_engine(model, flight, tensors))
        if len(given) != 1:
            raise _AskedError(f"[ServiceError] `{model}` answered {len(given)} times")
        return given[0]

    def _ask(self, model: str, flight: _Flight, tensors: Tensors, outputs: tuple[str, ...]) -> Arrays:
        return _outputs(_request(model, flight.id, tensors, list(outputs)).exec())

    def _ask_engine(self, model: str, flight: _Flight, tensors: Tensors) -> Iterator[Arrays]:
        """Its responses; none once the caller has gone."""
        if flight.left:
            raise _AskedError("[CancelledError] the caller went away")
        flight.asked = True
        outputs = [*_IDS, *(name for name in self._outputs if name in _NEEDED | flight.wanted)]
        for response in _request(model, flight.id, tensors, outputs).exec(decoupled=True):
            given = _outputs(response)
            if given:  # the last one may only say that there are no more
                yield given

    def _send(self, flight: _Flight, tensors: Tensors) -> None:
        flight.sender.send(_response(flight, tensors))

    def _land(self, flight: _Flight, tensors: Tensors | None = None, error: str | None = None) -> None:
        """The final response; the flight is taken out before."""
        with self._asking:
            del self._flights[flight.id]
        if error is not None:
            response = pb.InferenceResponse(output_tensors=[], error=pb.TritonError(error))
        else:
            response = None if tensors is None else _response(flight, tensors)
        arguments = () if response is None else (response,)
        flight.sender.send(*arguments, flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def _watch(self) -> None:
        while not self._closing.wait(self._period):
            for flight in list(self._flights.values()):
                flight.left = flight.left or self._has_left(flight)
                if flight.left and flight.asked:  # again and again: the first may have come before what it stops
                    self._stop(flight)

    def _has_left(self, flight: _Flight) -> bool:
        with self._asking:
            return flight.id in self._flights and bool(flight.sender.is_cancelled())

    def _stop(self, flight: _Flight) -> None:
        """Withdraw what runs inside for a caller who has gone: upstream's stop request, its needs filled."""
        one = np.array([[1]], np.int32)
        tensors = {"input_ids": one, "input_lengths": one, "request_output_len": one, "stop": np.array([[True]])}
        for model in filter(None, (self._target, self._draft)):
            try:
                for _ in _request(model, flight.id, tensors, list(_IDS)).exec(decoupled=True):
                    pass
            except pb.TritonModelException as error:
                pb.Logger.log_error(f"bls request {flight.id} could not be stopped: {error}")


def _ends(response: Arrays) -> bool:
    """Whether the engine says that these are the last tokens of a sequence; not all engines do."""
    reason = response.get("conch_finish_reason")
    return reason is not None and reason.ravel()[0] not in (b"", "")


def _request(model: str, request_id: str, tensors: Tensors, outputs: list[str]) -> Any:
    inputs = [pb.Tensor(name, np.ascontiguousarray(array)) for name, array in tensors.items()]
    return pb.InferenceRequest(model_name=model, request_id=request_id, inputs=inputs, requested_output_names=outputs)


def _outputs(response: Any) -> Tensors:
    """Raises _AskedError with the words of the model that was asked."""
    if response.has_error():
        raise _AskedError(response.error().message())
    return _copied({tensor.name(): tensor.as_numpy() for tensor in response.output_tensors()})


def _copied(tensors: Arrays) -> Tensors:
    """Arrays of our own: Triton's memory is gone as soon as the request or response is that they came in."""
    return {name: array.copy() for name, array in tensors.items()}


def _response(flight: _Flight, tensors: Tensors) -> Any:
    return pb.InferenceResponse([pb.Tensor(name, array) for name, array in tensors.items() if name in flight.wanted])
