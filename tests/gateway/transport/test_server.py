"""The gateway as a process."""

from __future__ import annotations

import resource
from collections.abc import Iterator

import pytest

from conch.gateway.transport.server import _make_room_for, listen
from conch_build.errors import SetupError


@pytest.fixture
def few_files() -> Iterator[int]:
    """A limit of open files as most systems start with."""
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, most))
    yield most
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, most))


def test_there_are_files_for_all_connections_as_far_as_the_system_allows(few_files: int) -> None:
    _make_room_for(100)
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 512
    _make_room_for(600)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (856, few_files)


def test_an_address_that_cannot_be_had_is_one_sentence() -> None:
    with listen("127.0.0.1", 0) as sock:
        port = sock.getsockname()[1]
        with pytest.raises(SetupError, match=rf"127.0.0.1:{port}: cannot listen: Address already in use"):
            listen("127.0.0.1", port)
