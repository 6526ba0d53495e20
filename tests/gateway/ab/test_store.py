"""What experiments come to is kept in the database, for every gateway and for the command line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from conch.gateway.ab import store
from conch.gateway.ab.sequential import Moments
from conch.gateway.database import Database
from conch_build.plan_experiments import Experiment

EXPERIMENT = Experiment.model_validate(
    {"variants": {"old": {"model": "m-8", "weight": 90}, "new": {"model": "m-4", "weight": 10}}}
)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = Database.at(None, tmp_path)
    database.run_now(lambda connection: store.enroll(connection, "m", EXPERIMENT))
    yield database
    database.close_now()


def weights(database: Database) -> dict[str, float]:
    return database.run_now(lambda connection: store.weights(connection, "m"))


def test_the_plans_weights_begin_it_and_steering_outlives_a_restart(database: Database) -> None:
    assert weights(database) == {"old": 90, "new": 10}
    assert database.run_now(lambda connection: store.steer(connection, "m", {"old": 50, "new": 50}, "try more"))
    database.run_now(lambda connection: store.enroll(connection, "m", EXPERIMENT))
    assert weights(database) == {"old": 50, "new": 50}
    texts = [event.text for event in database.run_now(lambda connection: store.events(connection, "m"))]
    assert texts == ["old=50, new=50: try more", "begun with old=90, new=10"]


def test_a_changed_plan_begins_anew(database: Database) -> None:
    database.run_now(lambda connection: store.add(connection, "m", "old", "e2e", Moments().plus(1.0)))
    changed = Experiment.model_validate({"variants": {"old": {"model": "m-8"}, "newer": {"model": "m-2"}}})
    database.run_now(lambda connection: store.enroll(connection, "m", changed))
    assert weights(database) == {"old": 1, "newer": 1}
    assert database.run_now(lambda connection: store.kept(connection, "m")) == {}


def test_other_shares_begin_the_figures_anew_and_a_stop_keeps_them(database: Database) -> None:
    def seen() -> int:
        kept = database.run_now(lambda connection: store.kept(connection, "m"))
        return kept["old"]["e2e"].count if kept else 0

    database.run_now(lambda connection: store.add(connection, "m", "old", "e2e", Moments().plus(1.0)))
    database.run_now(lambda connection: store.stop(connection, "m", "new", "errors are up"))
    assert seen() == 1
    database.run_now(lambda connection: store.steer(connection, "m", {"new": 5}, "again"))
    assert seen() == 0


def test_observations_of_several_gateways_add_up(database: Database) -> None:
    one, two = Moments().plus(1.0).plus(2.0), Moments().plus(6.0)
    for new in (one, two):
        database.run_now(lambda connection, new=new: store.add(connection, "m", "old", "e2e", new))
    kept = database.run_now(lambda connection: store.kept(connection, "m"))["old"]["e2e"]
    assert (kept.count, kept.mean, kept.variance) == (3, 3.0, 7.0)


def test_a_stopped_variant_leaves_the_others_their_shares(database: Database) -> None:
    assert database.run_now(lambda connection: store.stop(connection, "m", "new", "errors are up"))
    assert weights(database) == {"old": 90, "new": 0}
    assert not database.run_now(lambda connection: store.stop(connection, "m", "new", "errors are up"))


def test_when_nobody_else_has_requests_the_baseline_takes_over(database: Database) -> None:
    database.run_now(lambda connection: store.steer(connection, "m", {"old": 0, "new": 1}, "all in"))
    database.run_now(lambda connection: store.stop(connection, "m", "new", "errors are up"))
    assert weights(database) == {"old": 1, "new": 0}


def test_an_answer_is_scored_once_by_its_owner(database: Database) -> None:
    answer = store.Answered("chatcmpl-1", "m", "new", "key-1")
    database.run_now(lambda connection: store.remember(connection, [answer]))

    def score(owner: str, value: float) -> tuple[str, str, float | None] | None:
        return database.run_now(lambda connection: store.score(connection, "chatcmpl-1", owner, value))

    assert score("key-2", 1.0) is None
    assert score("key-1", 0.25) == ("m", "new", None)
    assert score("key-1", 1.0) == ("m", "new", 0.25)
    kept = database.run_now(lambda connection: store.kept(connection, "m"))["new"]["quality"]
    assert (kept.count, kept.mean) == (1, 0.25)
