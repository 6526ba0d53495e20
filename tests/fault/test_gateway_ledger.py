"""A gateway that is killed under load: the ledger has every answer that a client has seen whole, and has it once."""

from __future__ import annotations

import json
import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest
from sqlalchemy import select

from conch.gateway.database import Database
from conch.gateway.ledger.writing import ledger
from tests.contract.conftest import eventually, running_gateway
from tests.contract.test_gateway_keys import plan_in
from tests.gateway import postgres as databases

if TYPE_CHECKING:
    from conch.triton import TritonServer
    from conch_build.pipeline import BuildResult

CLIENTS = 12
database_url, postgres = databases.database_url, databases.postgres


class Client(threading.Thread):
    """Asks one thing after another, streamed and whole in turn, and notes what it saw the end of."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.url = url
        self.whole: list[str] = []
        self.start()

    def run(self) -> None:
        with httpx.Client(base_url=self.url, timeout=30, trust_env=False) as http:
            while True:
                try:
                    self._ask(http, stream=len(self.whole) % 2 == 0)
                except httpx.HTTPError:
                    return

    def _ask(self, http: httpx.Client, *, stream: bool) -> None:
        body = {"prompt": "1,", "max_tokens": 3, "stream": stream}
        with http.stream("POST", "/v1/completions", json=body) as response:
            if not stream:
                self.whole.append(json.loads(response.read())["id"])
                return
            answer = ""
            for line in response.iter_lines():
                if line == "data: [DONE]":
                    self.whole.append(answer)
                elif line:
                    answer = json.loads(line.removeprefix("data: "))["id"]


@pytest.mark.slow
@pytest.mark.conforms("LEDGER-1")
def test_every_answer_that_was_seen_whole_is_there_once(
    stack_triton: TritonServer, sample_build: BuildResult, database_url: str, tmp_path: Path
) -> None:
    plan, seen = plan_in(tmp_path, database_url), list[str]()
    for _ in range(3):
        with running_gateway(stack_triton, sample_build.engine.path, "--plan", plan) as gateway:
            clients = [Client(gateway.url) for _ in range(CLIENTS)]
            assert eventually(lambda clients=clients: sum(len(client.whole) for client in clients) > 30, 60)
            gateway.process.kill()
            for client in clients:
                client.join(40)
                assert not client.is_alive()
                seen += client.whole
    assert len(seen) > 90
    database = Database(database_url)
    rows = database.run_now(lambda connection: connection.execute(select(ledger.c.answer, ledger.c.finish)).all())
    database.close_now()
    times = Counter(row.answer for row in rows)
    assert [answer for answer in seen if times[answer] != 1] == []
    # Beyond those only what had ended when its client was still to hear of it.
    assert len(rows) <= len(seen) + 3 * CLIENTS
