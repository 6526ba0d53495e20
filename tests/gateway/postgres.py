"""A PostgreSQL of the tests' own, where its programs are installed; `database_url` is for what must hold on both."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

_OWNER = "postgres"
"""Who runs it in root's stead, which the server refuses to be run by."""


def programs() -> Path | None:
    """The folder of `initdb` and `pg_ctl`."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    found = shutil.which("initdb")
    return folders[-1] if folders else Path(found).parent if found else None


@dataclass(frozen=True)
class Postgres:
    url: str
    """With `{name}` for a database's."""
    stop: Callable[[], None]
    start: Callable[[], None]


@contextmanager
def running_postgres() -> Iterator[Postgres]:
    folder = programs()
    assert folder is not None
    root = os.geteuid() == 0
    with tempfile.TemporaryDirectory(prefix="pg", dir="/tmp") as home:
        if root:
            owner = pwd.getpwnam(_OWNER)
            os.chown(home, owner.pw_uid, owner.pw_gid)

        def command(program: str, *arguments: str) -> list[str]:
            # It ends with the tests, however they end.
            owner = [f"--reuid={_OWNER}", f"--regid={_OWNER}", "--clear-groups"] if root else []
            return ["setpriv", "--pdeathsig", "TERM", *owner, str(folder / program), *arguments]

        data = f"{home}/data"
        make = command("initdb", "-D", data, "-A", "trust", "-U", "conch", "--no-sync")
        subprocess.run(make, check=True, cwd=home, capture_output=True)
        running: list[subprocess.Popen[bytes]] = []

        def start() -> None:  # no port: a socket in its folder alone
            serve = command("postgres", "-D", data, "-k", home, "-c", "listen_addresses=")
            running.append(subprocess.Popen(serve, cwd=home, stderr=subprocess.DEVNULL))
            asking = [str(folder / "pg_isready"), "-q", "-h", home]
            deadline = time.monotonic() + 30
            while subprocess.run(asking).returncode and time.monotonic() < deadline:
                time.sleep(0.1)

        def stop() -> None:
            server = running.pop()
            server.send_signal(signal.SIGQUIT)
            server.wait(30)

        start()
        try:
            yield Postgres(f"postgresql://conch@/{{name}}?host={home}", stop, start)
        finally:
            stop()


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The URL of a running server, but for the name of a database."""
    if programs() is None:
        pytest.skip("no PostgreSQL")
    with running_postgres() as server:
        yield server.url


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of an empty database, in turn of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/gateway.db"
    import psycopg

    server: str = request.getfixturevalue("postgres")
    name = f"t{uuid.uuid4().hex}"
    with psycopg.connect(server.format(name="postgres"), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    return server.format(name=name)
