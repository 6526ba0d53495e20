"""A plan's replicas: started together, ended together, one of them replaced by another build.

Knows nothing of the gateway; callers may be on any thread.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from conch.fleet.places import places
from conch.hosting import Hosting
from conch.triton import State, TritonServer
from conch.triton.place import Place
from conch_build.errors import ServiceError
from conch_build.files import home
from conch_build.pipeline import BuildResult
from conch_build.plan import Plan
from conch_build.store import Say

_PORTS = 3
"""Of a server: HTTP, gRPC, metrics."""


@dataclass(eq=False)
class Replica:
    """One Triton, and what it serves."""

    number: int
    build: BuildResult
    triton: TritonServer
    held: contextlib.ExitStack
    """The build's artifacts, which are not removed meanwhile."""

    @property
    def urls(self) -> dict[str, str]:
        triton = self.triton
        return {"http": triton.http_url, "grpc": triton.grpc_url, "metrics": triton.metrics_url}


class Fleet:
    """The replicas of `plan`, each a watched Triton with CPUs or GPUs of its own."""

    def __init__(self, plan: Plan, hosting: Hosting, say: Say) -> None:
        """Raises SetupError when the machine has too few CPUs."""
        self.plan = plan
        self._hosting = hosting
        self._say = say
        split = plan.serving.disaggregated
        self.readers = split.context.instances if split is not None else 0
        """So many of them, the first ones, read prompts for the others."""
        count = self.readers + split.generation.instances if split is not None else plan.serving.replicas
        self._places = places(count, hosting.arrangement)
        self._replicas: dict[int, Replica] = {}
        self._lock = threading.Lock()
        self._alive: set[TritonServer] = set()
        self._ending = False

    @property
    def size(self) -> int:
        """How many there are to be."""
        return len(self._places)

    @property
    def replicas(self) -> list[Replica]:
        """In the order of their numbers."""
        with self._lock:
            return [self._replicas[number] for number in sorted(self._replicas)]

    def start(self, build: BuildResult) -> None:
        """Return when every replica has generated a token. Raises SetupError or ServiceError: then none runs."""
        with ThreadPoolExecutor(self.size) as threads:
            starts = [threads.submit(self.begin, number, build) for number in range(self.size)]
            try:
                for start in starts:
                    start.result()
            except BaseException:
                self.stop()  # which ends the starts as well
                raise

    def begin(self, number: int, build: BuildResult, *, beside: bool = False) -> Replica:
        """Start a server of this number with `build`, and return when it has generated a token.

        `beside`: on free ports, as the one that it will replace still runs. Raises SetupError or ServiceError.
        """
        with contextlib.ExitStack() as stack:
            for artifact in build.artifacts:
                stack.enter_context(artifact.hold())
            triton = self._server(number, build, self._places[number], beside)
            with self._lock:
                if self._ending:
                    raise ServiceError("the fleet is being ended")
                self._alive.add(triton)
            stack.callback(self._end, triton)
            triton.start()
            if triton.state is not State.READY:
                raise ServiceError("it was ended while it started")
            replica = Replica(number, build, triton, stack.pop_all())
            with self._lock:
                self._replicas[number] = replica
            return replica

    def end(self, replica: Replica) -> None:
        """Let what runs there end, then end it."""
        replica.held.close()
        with self._lock:
            if self._replicas.get(replica.number) is replica:
                del self._replicas[replica.number]

    def stop(self) -> None:
        """End all of them at once, also those that only start. It is the last thing that a fleet does."""
        with self._lock:
            self._ending = True
            alive, replicas = list(self._alive), list(self._replicas.values())
        if alive:
            with ThreadPoolExecutor(len(alive)) as threads:
                list(threads.map(self._end, alive))
        for replica in replicas:
            replica.held.close()

    def _server(self, number: int, build: BuildResult, place: Place, beside: bool) -> TritonServer:
        ports, several = self.plan.serving.triton, self.size > 1

        def port(first: int) -> int:
            return first + _PORTS * number if first and not beside else 0

        name = f"{self.plan.name}-triton{f'-{number}' if several else ''}"
        triton = TritonServer(
            build.repository.path,
            http_port=port(ports.http_port),
            grpc_port=port(ports.grpc_port),
            metrics_port=port(ports.metrics_port),
            log_path=home() / "logs" / f"{name}.log",
            run_folder=home() / "run",
            place=place,
            **vars(self._hosting),
        )
        triton.on_change(self._teller(f"triton {number}" if several else "triton"))
        return triton

    def _teller(self, name: str) -> Callable[[State], None]:
        return lambda state: self._say(f"{name:<10}  {state.value}")

    def _end(self, triton: TritonServer) -> None:
        triton.stop()
        with self._lock:
            self._alive.discard(triton)
