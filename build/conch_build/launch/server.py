"""The flags of one tritonserver. Knows nothing of MPI and of why a server is started."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

CONTAINER_BINARY = "/opt/tritonserver/bin/tritonserver"
_CLOSED_APIS = "shared-memory,model-repository,trace,logging"


@dataclass(frozen=True)
class ServerFlags:
    """One server, started alone or as a rank among several.

    `admin_key`: administration over HTTP and gRPC is open to those who send it in the header `conch-admin`.
    """

    repository: str
    admin_key: str
    binary: str = CONTAINER_BINARY
    backends: str | None = None
    """None: the folder beside the binary."""
    host: str = "127.0.0.1"
    http_port: int = 8000
    grpc_port: int = 8001
    metrics_port: int = 8002
    exit_seconds: int = 30
    gpu: bool = True
    """False: a machine without one, where pools of pinned memory and many threads are a waste."""

    def argv(self, region_prefix: str, loads: tuple[str, ...] | None = None, *further: str) -> tuple[str, ...]:
        """The command line of the server that clients talk to, or of a rank behind it.

        `region_prefix` names its shared memory, which must be its own. `loads`: the models of a rank that no client
        talks to; such a rank opens no port. `further`: flags that an arrangement adds.
        """
        ports = self._open_ports() if loads is None else self._as_rank(loads)
        return (
            self.binary,
            f"--model-repository={self.repository}",
            *([f"--backend-directory={self.backends}"] if self.backends else []),
            f"--backend-config=python,shm-region-prefix-name={region_prefix}",
            "--disable-auto-complete-config",
            "--exit-on-error=true",
            "--strict-readiness=true",
            f"--exit-timeout-secs={self.exit_seconds}",
            *ports,
            *(() if self.gpu else self._without_gpu()),
            *further,
        )

    def _open_ports(self) -> Iterator[str]:
        closed = f"{_CLOSED_APIS}:conch-admin={self.admin_key}"
        yield f"--http-address={self.host}"
        yield f"--http-port={self.http_port}"
        yield f"--http-restricted-api={closed}"
        yield f"--grpc-address={self.host}"
        yield f"--grpc-port={self.grpc_port}"
        yield "--grpc-infer-allocation-pool-size=64"
        yield f"--grpc-restricted-protocol={closed}"
        yield f"--metrics-address={self.host}"
        yield f"--metrics-port={self.metrics_port}"

    @staticmethod
    def _as_rank(loads: tuple[str, ...]) -> Iterator[str]:
        yield "--model-control-mode=explicit"
        yield from (f"--load-model={model}" for model in loads)
        yield from ("--allow-http=false", "--allow-grpc=false", "--allow-metrics=false")

    @staticmethod
    def _without_gpu() -> Iterator[str]:
        yield "--allow-gpu-metrics=false"
        yield "--pinned-memory-pool-byte-size=0"
        yield "--http-thread-count=2"
        yield "--model-load-thread-count=2"
