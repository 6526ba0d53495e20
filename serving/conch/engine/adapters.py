"""Which requests wait for an adapter, and what is asked about adapters while they wait.

Requests for adapters stand in one line. Each passes when its adapter is loaded; the first one whose weights were read,
but for which every row is held, stops the line behind it until a row is free: those that run end in finite time, so
nobody starves. Requests without an adapter never wait here.

Weights are read on a thread of their own, one adapter at a time, those of the first in line first. An adapter that is
unloaded is unknown at once; one that is loaded again with new weights has them for new requests at once. Which rows
they take is for `adapter_slots`. Knows nothing of graphs, schedules or tokens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from conch.engine.adapter_slots import AdapterSlots, AdapterWeights, Network
from conch.engine.sequence import Sequence
from conch.engine.stats import AdapterState, AdapterStats
from conch_build.adapter_registry import AdapterRegistry
from conch_build.errors import CheckpointError, ConchError, NotFoundError, RequestError, ServiceError, UnavailableError


@dataclass
class _Order:
    """To load or to unload an adapter, from another thread."""

    name: str
    load: bool
    done: Future[None] = field(default_factory=Future)


@dataclass
class _Reading:
    """Weights on their way: for the line, or because of an order."""

    name: str
    weights: Future[AdapterWeights]
    order: _Order | None


class Adapters:
    def __init__(self, registry: AdapterRegistry, network: Network) -> None:
        self._registry = registry
        self._paths = {adapter.name: adapter.path for adapter in registry.adapters}
        self._network = network
        self.wake: Callable[[], None] = lambda: None
        """Called, on any thread, when there is something to do for `admit`."""
        self._unloaded: set[str] = set()
        self._slots = AdapterSlots(registry.slots, network)
        self._line: list[Sequence] = []
        self._orders: deque[_Order] = deque()
        self._reading: _Reading | None = None
        self._read: tuple[str, AdapterWeights] | None = None  # waits for a row
        self._closed = False
        self._thread = ThreadPoolExecutor(1, "conch-adapters")
        self._thread.submit(network.prepare)  # or the first request would wait for it

    # From any thread.

    def check(self, name: str) -> None:
        """Raises NotFoundError for an adapter that no request can have."""
        if name not in self._paths or name in self._unloaded:
            raise _unknown(name)

    def order(self, name: str, *, load: bool) -> Future[None]:
        """Read an adapter again and use what was read from now on; or unload it. Raises NotFoundError.

        The result comes once that is done, or says why it cannot be: then everything stays as it was.
        """
        if name not in self._paths or (not load and name in self._unloaded):
            raise _unknown(name)
        order = _Order(name, load)
        self._orders.append(order)
        if self._closed:
            self._refuse_orders()
        self.wake()
        return order.done

    def states(self) -> list[AdapterState]:
        """Every registered adapter."""
        waiting = [sequence.request.adapter for sequence in list(self._line)]
        return [
            self._state(adapter.name, adapter.id, waiting.count(adapter.name)) for adapter in self._registry.adapters
        ]

    def stats(self) -> AdapterStats:
        slots = self._slots
        return AdapterStats(len(slots), slots.used, len(self._line), slots.loads, slots.evictions)

    def close(self) -> None:
        """The engine has ended: nothing is carried out any more."""
        self._closed = True
        self._thread.shutdown(wait=False, cancel_futures=True)
        if self._reading and self._reading.order:
            self._orders.append(self._reading.order)
        self._reading = None
        self._refuse_orders()

    def _refuse_orders(self) -> None:
        while self._orders:
            self._orders.popleft().done.set_exception(UnavailableError("is closed", where="engine"))

    # The rest is for the engine's thread.

    @property
    def busy(self) -> bool:
        """Whether `admit` has something new to do."""
        if self._reading is not None:
            return self._reading.weights.done()
        return bool(self._orders)

    @property
    def waiting(self) -> bool:
        return bool(self._line)

    def add(self, sequence: Sequence) -> None:
        """A request that needs an adapter gets in line."""
        self._line.append(sequence)

    def admit(self) -> tuple[list[Sequence], list[tuple[Sequence, ConchError]]]:
        """Those who need wait no longer, in their order, and those who never will get what they wait for, and why."""
        failed = self._take_what_was_read()
        failed += self._follow_orders()
        wanted = [_adapter_of(sequence) for sequence in self._line]
        if self._read and self._read[0] not in wanted:  # those who waited for it have left
            self._read = None
        admitted = []
        for sequence, name in zip(list(self._line), wanted, strict=True):
            if name not in self._slots and self._read and self._read[0] == name:
                if not self._slots.install(*self._read):
                    break
                self._read = None
            if name in self._slots:
                self._slots.hold(name, sequence)
                self._line.remove(sequence)
                admitted.append(sequence)
            elif self._read is None:
                self._start_reading(name)
        return admitted, failed

    def release(self, sequence: Sequence) -> None:
        """A sequence has ended, wherever it was."""
        if sequence in self._line:
            self._line.remove(sequence)
        self._slots.release(sequence)

    def _take_what_was_read(self) -> list[tuple[Sequence, ConchError]]:
        if self._reading is None or not self._reading.weights.done():
            return []
        reading, self._reading = self._reading, None
        name, order, error = reading.name, reading.order, reading.weights.exception()
        if error is None and order is None:
            self._read = (name, reading.weights.result())
        elif error is None and order is not None:
            self._replace(name, reading.weights.result())
            order.done.set_result(None)
        elif error is not None and order is not None:
            order.done.set_exception(_failure(name, error))
        elif error is not None:
            return [(sequence, _failure(name, error)) for sequence in self._leave_line(name)]
        return []

    def _follow_orders(self) -> list[tuple[Sequence, ConchError]]:
        """In the order in which they came; before the line, as they are rare."""
        failed: list[tuple[Sequence, ConchError]] = []
        while self._orders and self._reading is None:
            order = self._orders.popleft()
            if order.load:
                self._start_reading(order.name, order)
            else:
                self._unloaded.add(order.name)
                self._retire(order.name)
                failed += [(sequence, _unknown(order.name)) for sequence in self._leave_line(order.name)]
                order.done.set_result(None)
        return failed

    def _replace(self, name: str, weights: AdapterWeights) -> None:
        """New requests get these weights."""
        self._unloaded.discard(name)
        if self._slots.holds(name, weights):
            return
        self._retire(name)
        if not self._line:  # those in line come first; without a row it is read again for the first request
            self._slots.install(name, weights)

    def _leave_line(self, name: str) -> list[Sequence]:
        leaving = [sequence for sequence in self._line if _adapter_of(sequence) == name]
        self._line = [sequence for sequence in self._line if _adapter_of(sequence) != name]
        return leaving

    def _retire(self, name: str) -> None:
        if self._read and self._read[0] == name:
            self._read = None
        self._slots.retire(name)

    def _start_reading(self, name: str, order: _Order | None = None) -> None:
        if self._reading is None:
            weights: Future[AdapterWeights] = self._thread.submit(self._network.read, self._paths[name])
            self._reading = _Reading(name, weights, order)
            weights.add_done_callback(lambda done: self.wake())

    def _state(self, name: str, number: int, waiting: int) -> AdapterState:
        running = self._slots.holders(name)
        if name in self._unloaded:
            return AdapterState(name, number, "unloaded", running, waiting)
        return AdapterState(name, number, "loaded" if name in self._slots else "available", running, waiting)


def _adapter_of(sequence: Sequence) -> str:
    name = sequence.request.adapter
    assert name is not None
    return name


def _unknown(name: str) -> NotFoundError:
    return NotFoundError(f"The model '{name}' does not exist", param="model", code="model_not_found")


def _failure(name: str, error: BaseException) -> ConchError:
    """Why an adapter cannot be had. Where it lies is not for callers."""
    if isinstance(error, CheckpointError):
        what = f"the adapter '{name}' cannot be loaded: it {error.what}"
        return RequestError(what, param="model", code="adapter_unusable", fix=error.fix)
    return ServiceError(f"the adapter '{name}' cannot be loaded: {error}", where="engine")
