"""What the ledger adds up to, and `conch usage`."""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from sqlalchemy import insert

from conch.cli import main
from conch.gateway.database import Database
from conch.gateway.keys import grants as keys
from conch.gateway.ledger.usage import COLUMNS, usage
from conch.gateway.ledger.writing import ledger

DAY_MS = 86_400_000
BASE_MS = 20_000 * DAY_MS

ROW = {
    "at_ms": BASE_MS,
    "request": "r",
    "answer": "a",
    "key": "",
    "endpoint": "completions",
    "model": "m",
    "adapter": "",
    "server": "",
    "experiment": "",
    "variant": "",
    "status": 200,
    "finish": "stop",
    "streamed": 0,
    "prompt_tokens": 100,
    "cached_tokens": 40,
    "completion_tokens": 50,
    "reasoning_tokens": 5,
    "draft_tokens": 30,
    "accepted_tokens": 20,
    "ttft_seconds": 0.1,
    "e2e_seconds": 0.5,
    "prefill_seconds": 1.0,
    "decode_seconds": 3.0,
    "usd": 4.0 * 36 / 3600,
}


def fill(database: Database, *rows: dict[str, Any]) -> None:
    written = [{**ROW, "id": f"{index:032}", **row} for index, row in enumerate(rows)]
    database.run_now(lambda connection: connection.execute(insert(ledger), written))


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    database = Database(database_url)
    yield database
    database.close_now()


@pytest.mark.conforms("LEDGER-3")
def test_a_key_pays_for_the_busy_time_of_its_requests_by_kind_of_token(database: Database) -> None:
    ada = database.run_now(lambda connection: keys.create(connection, keys.Grant("ada")))[0]
    fill(database, {"key": ada.id}, {"key": ada.id, "status": 502}, {}, {"status": 499, "finish": "cancelled"}, {})
    nobody, first = database.run_now(lambda connection: usage(connection, "key"))
    assert (nobody.group, nobody.requests, nobody.failed) == ("", 3, 0)
    assert (first.group, first.requests, first.failed) == ("ada", 2, 1)
    assert (first.prompt_tokens, first.cached_tokens, first.completion_tokens) == (200, 80, 100)
    assert (first.draft_tokens, first.accepted_tokens, first.reasoning_tokens) == (60, 40, 10)
    assert first.usd == pytest.approx(2 * 0.04)
    assert first.cost is not None
    # A quarter of the money is the prompts', of which only what was computed pays.
    assert first.cost.computed == pytest.approx(0.02 / 120 * 1e6)
    assert first.cost.cached == 0
    assert first.cost.generated == pytest.approx(0.06 / 100 * 1e6)
    assert first.cost.any == pytest.approx(0.08 / 300 * 1e6)


def test_days_are_utcs_and_in_order_and_bounds_hold(database: Database) -> None:
    fill(database, {"at_ms": BASE_MS + 2 * DAY_MS}, {"at_ms": BASE_MS - 1}, {}, {"at_ms": BASE_MS + DAY_MS - 1})
    days = database.run_now(lambda connection: usage(connection, "day"))
    assert [(day.group, day.requests) for day in days] == [("2024-10-03", 1), ("2024-10-04", 2), ("2024-10-06", 1)]
    since, until = BASE_MS / 1000, BASE_MS / 1000 + 86400
    days = database.run_now(lambda connection: usage(connection, "day", since, until))
    assert [(day.group, day.requests) for day in days] == [("2024-10-04", 2)]


def test_models_adapters_and_experiments_are_told_apart(database: Database) -> None:
    tried = {"adapter": "french", "experiment": "trial", "variant": "b"}
    fill(database, {}, tried, {"model": "n"}, {"adapter": "french"})
    for by, groups in (
        ("model", {"m": 3, "n": 1}),
        ("adapter", {"": 2, "french": 2}),
        ("experiment", {"": 3, "trial": 1}),
        ("variant", {"": 3, "b": 1}),
    ):
        rows = database.run_now(lambda connection, by=by: usage(connection, by))
        assert {row.group: row.requests for row in rows} == groups


def test_without_a_price_there_are_tokens_and_no_money(database: Database) -> None:
    fill(database, {"usd": None})
    (row,) = database.run_now(lambda connection: usage(connection, "model"))
    assert (row.usd, row.cost, row.unpriced, row.prompt_tokens) == (None, None, 1, 100)
    fill(database, *({"id": f"priced{index}"} for index in range(3)))
    (row,) = database.run_now(lambda connection: usage(connection, "model"))
    assert (row.unpriced, row.requests, row.usd) == (1, 4, pytest.approx(3 * 0.04))


@pytest.fixture
def conch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.setenv("CONCH_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(main, ["usage", *arguments])


def test_the_command_prints_json_and_a_table_and_writes_csv(conch: Callable[..., Result], tmp_path: Path) -> None:
    assert json.loads(conch("--json").stdout) == []
    database = Database.at(None, tmp_path / "gateway")
    now = int(time.time() * 1000)
    fill(database, {"at_ms": now}, {"at_ms": now - 3 * DAY_MS, "adapter": "french"})
    database.close_now()
    found = json.loads(conch("--by", "adapter", "--json", "--csv", "out.csv").stdout)
    assert [row["adapter"] for row in found] == ["", "french"]
    assert found[0].keys() == {"adapter", *COLUMNS} - {"group"}
    assert found[0]["usd_per_million_generated"] == pytest.approx(600)
    with (tmp_path / "out.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["adapter"] for row in rows] == ["", "french"]
    assert float(rows[1]["usd"]) == pytest.approx(0.04)
    assert "french" in conch("--by", "adapter").stdout
    assert len(json.loads(conch("--since", "2d", "--by", "day", "--json").stdout)) == 1
    assert len(json.loads(conch("--until", "2d", "--by", "day", "--json").stdout)) == 1


def test_a_time_that_is_none_is_told(conch: Callable[..., Result]) -> None:
    result = conch("--since", "yesterday", "--json")
    assert result.exit_code == 2 and "yesterday" in json.loads(result.stdout)["what"]
