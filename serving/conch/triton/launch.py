"""How a server is started: its ports and its command line. Starts nothing."""

from __future__ import annotations

import secrets
import socket
from dataclasses import dataclass
from pathlib import Path

from conch.triton.find import TritonInstall
from conch_build.errors import SetupError

_CLOSED_APIS = "shared-memory,model-repository,trace,logging"


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

    def command(self, region_prefix: str) -> list[str]:
        """The command line: loopback, closed administration, few threads."""
        closed = f"{_CLOSED_APIS}:conch-admin={secrets.token_hex(16)}"
        return [
            str(self.install.binary),
            f"--model-repository={self.repository}",
            f"--backend-directory={self.backends}",
            f"--backend-config=python,shm-region-prefix-name={region_prefix}",
            "--disable-auto-complete-config",
            "--exit-on-error=true",
            "--strict-readiness=true",
            f"--exit-timeout-secs={self.drain_seconds}",
            f"--http-address={self.host}",
            f"--http-port={self.ports.http}",
            "--http-thread-count=2",
            f"--http-restricted-api={closed}",
            f"--grpc-address={self.host}",
            f"--grpc-port={self.ports.grpc}",
            "--grpc-infer-allocation-pool-size=64",
            f"--grpc-restricted-protocol={closed}",
            f"--metrics-address={self.host}",
            f"--metrics-port={self.ports.metrics}",
            "--allow-gpu-metrics=false",
            "--pinned-memory-pool-byte-size=0",
            "--model-load-thread-count=2",
        ]
