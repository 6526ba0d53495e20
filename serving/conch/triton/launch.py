"""How a server is started here: its ports, its command and its environment. Starts nothing."""

from __future__ import annotations

import secrets
import socket
from dataclasses import dataclass
from pathlib import Path

from conch.triton.find import TritonInstall
from conch.triton.place import EVERYWHERE, Place
from conch.triton.probe import OWN_PROBE, Probe
from conch_build.errors import SetupError
from conch_build.launch import SINGLE, Arrangement, ServerFlags, start_command
from conch_build.recipe import Command


@dataclass(frozen=True)
class Ports:
    """Where the server listens."""

    http: int
    grpc: int
    metrics: int

    @classmethod
    def choose(cls, http: int, grpc: int, metrics: int, host: str) -> Ports:
        """0 becomes a free port. Raises SetupError for a port that is taken."""
        sockets = []
        try:
            for name, port in (("HTTP", http), ("gRPC", grpc), ("metrics", metrics)):
                listener = socket.socket()
                sockets.append(listener)
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    listener.bind((host, port))
                except OSError as error:
                    raise SetupError(
                        f"Triton's {name} port {port} cannot be used: {error.strerror}",
                        where=f"{host}:{port}",
                        fix="Stop what listens there or choose another port; 0 takes a free one.",
                    ) from None
            return cls(*(listener.getsockname()[1] for listener in sockets))
        finally:
            for listener in sockets:
                listener.close()


@dataclass(frozen=True)
class Launch:
    """How a server is started; the same for each restart."""

    install: TritonInstall
    backends: Path
    repository: Path
    host: str
    ports: Ports
    drain_seconds: int
    log_path: Path
    arrangement: Arrangement = SINGLE
    probe: Probe = OWN_PROBE
    place: Place = EVERYWHERE

    def command(self, region_prefix: str) -> Command:
        """The command: loopback, closed administration. Raises PlanError for what one machine cannot start."""
        flags = ServerFlags(
            str(self.repository),
            secrets.token_hex(16),
            str(self.install.binary),
            str(self.backends),
            self.host,
            self.ports.http,
            self.ports.grpc,
            self.ports.metrics,
            self.drain_seconds,
            gpu=self.install.gpu,
        )
        return start_command(flags, self.arrangement, region_prefix)

    def environment(self, command: Command) -> dict[str, str]:
        devices = ",".join(map(str, self.place.gpus))
        mine = {"CUDA_VISIBLE_DEVICES": devices} if devices else {}
        return {**self.install.environment(), **mine, **command.env}
