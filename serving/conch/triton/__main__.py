"""`python -m conch.triton REPOSITORY`: a watched server on loopback, until a signal ends it."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import click

from conch.triton.supervisor import TritonServer
from conch_build.console import Console, with_console
from conch_build.files import home


@click.command()
@click.argument("repository", type=click.Path(path_type=Path))
@click.option("--http-port", default=8000, show_default=True, help="0 takes a free one.")
@click.option("--grpc-port", default=8001, show_default=True)
@click.option("--metrics-port", default=8002, show_default=True)
@with_console
def main(console: Console, repository: Path, http_port: int, grpc_port: int, metrics_port: int) -> None:
    """Serve the models in REPOSITORY. SIGTERM or Ctrl-C lets running answers end."""
    asked = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: asked.set())
    server = TritonServer(
        repository,
        http_port=http_port,
        grpc_port=grpc_port,
        metrics_port=metrics_port,
        log_path=home() / "logs" / "triton.log",
        run_folder=home() / "run",
    )
    server.on_change(lambda state: console.note(f"triton      {state.value}"))
    server.start()
    console.result({"http": server.http_url, "grpc": server.grpc_url}, f"{server.http_url}  {server.grpc_url}")
    asked.wait()
    server.stop()


if __name__ == "__main__":
    main()
