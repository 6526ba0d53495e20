"""API keys in the database, and the commands that keep them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from conch.cli import main
from conch.gateway.database import Database
from conch.gateway.keys import grants as keys
from conch.gateway.keys.grants import Grant
from conch_build.errors import InputError

Run = Callable[..., Result]


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    database = Database(database_url)
    yield database
    database.close_now()


@pytest.fixture
def conch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("CONCH_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(main, list(arguments))


def test_a_key_opens_and_its_text_is_nowhere_in_the_database(tmp_path: Path) -> None:
    database = Database.at(None, tmp_path)
    key, text = database.run_now(lambda connection: keys.create(connection, Grant("ada")))
    database.close_now()
    assert key.opens(text)
    assert keys.id_in(text) == key.id
    for path in tmp_path.iterdir():
        assert text[-43:].encode() not in path.read_bytes()


def test_no_other_text_opens_it(database: Database) -> None:
    key, text = database.run_now(lambda connection: keys.create(connection, Grant("ada")))
    other = database.run_now(lambda connection: keys.create(connection, Grant("bob")))[1]
    changed = text[:-1] + ("A" if text[-1] != "A" else "B")
    for wrong in (other, changed, text.upper(), text[:-1], f"{text}x", "", key.id, key.digest):
        assert not key.opens(wrong)
    for shapeless in ("", "sk-conch-", text[:-1], f"{text}x", f" {text}", text.replace("conch", "proj"), "é" * 68):
        assert keys.id_in(shapeless) is None


def test_a_rotated_key_keeps_its_id_and_its_limits_and_the_old_text_holds_for_the_grace(database: Database) -> None:
    key, old = database.run_now(lambda connection: keys.create(connection, Grant("ada", parallel=2)))
    rotated, new = database.run_now(lambda connection: keys.rotate(connection, "ada", 0.2))
    assert (rotated.id, rotated.grant) == (key.id, key.grant)
    assert rotated.opens(new) and rotated.opens(old)
    time.sleep(0.25)
    assert rotated.opens(new) and not rotated.opens(old)
    again, newest = database.run_now(lambda connection: keys.rotate(connection, key.id))
    assert again.opens(newest) and not again.opens(new)


def test_every_change_has_another_revision(database: Database) -> None:
    seen = [database.run_now(keys.revision)]
    for change in (
        lambda connection: keys.create(connection, Grant("ada")),
        lambda connection: keys.create(connection, Grant("bob")),
        lambda connection: keys.rotate(connection, "ada"),
        lambda connection: keys.revoke(connection, "bob"),
        lambda connection: keys.revoke(connection, "ada"),
    ):
        database.run_now(change)
        seen.append(database.run_now(keys.revision))
    assert sorted(set(seen)) == seen


def test_a_key_expires(database: Database) -> None:
    key, _ = database.run_now(lambda connection: keys.create(connection, Grant("a", expires_at=time.time() + 0.1)))
    assert key.state == "active"
    time.sleep(0.15)
    assert database.run_now(keys.all_keys)[0].state == "expired"


@pytest.mark.parametrize(
    "grant",
    [
        {"name": ""},
        {"name": "a b"},
        {"name": "-a"},
        {"name": "a" * 65},
        {"name": "a\n"},
        {"name": "a", "scopes": ()},
        {"name": "a", "scopes": ("inference", "root")},
        {"name": "a", "models": ("",)},
        {"name": "a", "parallel": 0},
        {"name": "a", "requests_per_minute": -1},
        {"name": "a", "tokens_per_minute": 1 << 40},
        {"name": "a", "expires_at": 1.0},
    ],
)
def test_a_grant_that_makes_no_sense_is_refused(grant: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        Grant(**grant)


def test_a_name_is_taken_for_good(database: Database) -> None:
    database.run_now(lambda connection: keys.create(connection, Grant("ada")))
    database.run_now(lambda connection: keys.revoke(connection, "ada"))
    for change in (keys.create, lambda connection, grant: keys.rotate(connection, grant.name)):
        with pytest.raises(InputError):
            database.run_now(lambda connection, change=change: change(connection, Grant("ada")))


def test_the_command_shows_a_key_once_and_lists_it_without(conch: Run) -> None:
    made = json.loads(conch("keys", "create", "ada", "--parallel", "2", "--expires", "90d", "--json").stdout)
    assert keys.id_in(made["key"]) == made["id"]
    assert made["expires_at"] == pytest.approx(time.time() + 90 * 86400, abs=60)
    text = conch("keys", "create", "bob", "--scope", "metrics", "--model", "m").stdout.strip()
    listed = conch("keys", "list", "--json").stdout
    assert made["key"] not in listed and text not in listed
    assert [(key["name"], key["scopes"], key["models"], key["parallel"]) for key in json.loads(listed)] == [
        ("ada", ["inference", "batch"], None, 2),
        ("bob", ["metrics"], ["m"], None),
    ]
    assert text not in conch("keys", "list").stdout


def test_the_command_rotates_and_revokes_by_name_or_id(conch: Run) -> None:
    made = json.loads(conch("keys", "create", "ada", "--json").stdout)
    rotated = json.loads(conch("keys", "rotate", "ada", "--grace", "1h", "--json").stdout)
    assert rotated["id"] == made["id"] and rotated["key"] != made["key"]
    assert json.loads(conch("keys", "revoke", made["id"], "--json").stdout)["state"] == "revoked"
    assert "revoked" in conch("keys", "list").stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ("create", "a b"),
        ("create", "a", "--scope", "root"),
        ("create", "a", "--parallel", "0"),
        ("create", "a", "--expires", "soon"),
        ("create", "a", "--expires", "2020-01-01"),
        ("create", "a", "--plan", "missing.yaml"),
        ("revoke", "nobody"),
        ("rotate", "nobody"),
    ],
)
def test_wrong_orders_are_told_and_change_nothing(conch: Run, arguments: tuple[str, ...]) -> None:
    result = conch("keys", *arguments, "--json")
    assert result.exit_code == 2
    assert json.loads(result.stdout)["what"]
    assert json.loads(conch("keys", "list", "--json").stdout) == []


def test_the_plan_says_which_database_is_meant(conch: Run, tmp_path: Path) -> None:
    plan = f"name: m\nmodel: {{checkpoint: sample}}\nserving: {{gateway: {{database: {{url: 'sqlite:///{tmp_path}/x.db'}}}}}}\n"
    (tmp_path / "conch.yaml").write_text(plan, encoding="utf-8")
    conch("keys", "create", "ada")
    assert (tmp_path / "x.db").exists() and not (tmp_path / "home").exists()
    assert "ada" in conch("keys", "list", "--plan", "conch.yaml").stdout
