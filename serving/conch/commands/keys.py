"""`conch keys`: the API keys of a gateway, in its database; a gateway that runs follows within two seconds."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from conch_build.console import Console, table, with_console
from conch_build.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conch.gateway.database import Database
    from conch.gateway.keys.grants import Key

F = TypeVar("F", bound=Callable[..., Any])

_DAY_SECONDS = 86400.0
_UNITS = {"h": 3600.0, "d": _DAY_SECONDS, "w": 7 * _DAY_SECONDS}
_SPAN = re.compile(r"([0-9]{1,6})([hdw])")

plan_option = click.option(
    "--plan",
    type=click.Path(path_type=Path),
    default="conch.yaml",
    show_default=True,
    help="Its `serving.gateway.database` is meant; without such a file, that of a gateway without a plan.",
)


@click.group()
def keys() -> None:
    """API keys: who may ask a gateway, for what and how much.

    A gateway that has never had a key answers everybody, and binds to the loopback interface alone.
    """


@keys.command()
@click.argument("name")
@click.option("--scope", "scopes", multiple=True, help="inference, batch, adapters, metrics; default: the first two.")
@click.option("--model", "models", multiple=True, help="A model, adapter or experiment that it may ask; default: all.")
@click.option("--requests-per-minute", type=int)
@click.option("--tokens-per-minute", type=int, help="Of prompts, and of what answers may have.")
@click.option("--parallel", type=int, help="Requests at once.")
@click.option("--expires", help="When: 90d, 12h, 2027-01-31, 2027-01-31T12:00. Default: never.")
@plan_option
@with_console
def create(
    console: Console,
    name: str,
    scopes: tuple[str, ...],
    models: tuple[str, ...],
    requests_per_minute: int | None,
    tokens_per_minute: int | None,
    parallel: int | None,
    expires: str | None,
    plan: Path,
) -> None:
    """Make the key NAME and print it, this once."""
    from conch.gateway.keys import grants as store

    grant = store.Grant(
        name=name,
        scopes=scopes or store.DEFAULT_SCOPES,
        models=models or None,
        requests_per_minute=requests_per_minute,
        tokens_per_minute=tokens_per_minute,
        parallel=parallel,
        expires_at=None if expires is None else moment(expires, ahead=True),
    )
    with database_of(plan) as database:
        key, text = database.run_now(lambda connection: store.create(connection, grant))
    _show_once(console, key, text)


@keys.command("list")
@plan_option
@with_console
def list_keys(console: Console, plan: Path) -> None:
    """Show every key there was, but for the key itself."""
    from conch.gateway.keys.grants import all_keys

    with database_of(plan) as database:
        known = [key.as_dict() for key in database.run_now(all_keys)]
    headers = ("id", "name", "state", "scopes", "models", "req/min", "tok/min", "parallel", "expires")
    limits = ("requests_per_minute", "tokens_per_minute", "parallel")
    rows = [
        (
            *(key[name] for name in ("id", "name", "state")),
            ",".join(key["scopes"]),
            "all" if key["models"] is None else ",".join(key["models"]),
            *("-" if key[limit] is None else key[limit] for limit in limits),
            "never" if key["expires_at"] is None else _utc(key["expires_at"]),
        )
        for key in known
    ]
    console.result(known, table(headers, rows) if rows else "no keys: the gateway answers its own machine alone")


@keys.command()
@click.argument("name")
@plan_option
@with_console
def revoke(console: Console, name: str, plan: Path) -> None:
    """Close the key NAME (or id) for good; its running requests end as they would."""
    from conch.gateway.keys import grants as store

    with database_of(plan) as database:
        key = database.run_now(lambda connection: store.revoke(connection, name))
    console.result(key.as_dict(), f"revoked {key.grant.name} ({key.id})")


@keys.command()
@click.argument("name")
@click.option("--grace", help="How long the old one still holds: 1h, 7d. Default: not at all.")
@plan_option
@with_console
def rotate(console: Console, name: str, grace: str | None, plan: Path) -> None:
    """Give the key NAME (or id) a new text, with its limits and its history, and print it, this once."""
    from conch.gateway.keys import grants as store

    seconds = 0.0 if grace is None else moment(grace, ahead=True) - time.time()
    with database_of(plan) as database:
        key, text = database.run_now(lambda connection: store.rotate(connection, name, seconds))
    _show_once(console, key, text)


@contextmanager
def database_of(plan: Path) -> Iterator[Database]:
    """The database of the gateway that serves a plan. Raises ConchError."""
    from conch.gateway.database import Database
    from conch.gateway.settings import gateway_home
    from conch_build.plan import load_plan

    given = click.get_current_context().get_parameter_source("plan")
    asked = given is not click.core.ParameterSource.DEFAULT
    url = load_plan(plan).serving.gateway.database.url if asked or plan.exists() else None
    database = Database.at(url, gateway_home())
    try:
        yield database
    finally:
        database.close_now()


def moment(text: str, *, ahead: bool) -> float:
    """`7d` (from now on, or ago), `2027-01-31` or `2027-01-31T12:00` (UTC), in seconds since 1970.

    Raises InputError.
    """
    if span := _SPAN.fullmatch(text):
        seconds = int(span[1]) * _UNITS[span[2]]
        return time.time() + (seconds if ahead else -seconds)
    try:
        given = datetime.fromisoformat(text)
        return (given if given.tzinfo else given.replace(tzinfo=timezone.utc)).timestamp()
    except (ValueError, OverflowError):
        fix = "Write 12h, 7d, 4w, 2027-01-31 or 2027-01-31T12:00."
        raise InputError(f"{text[:80]!r} is no time", fix=fix) from None


def _show_once(console: Console, key: Key, text: str) -> None:
    console.note(f"{key.grant.name} ({key.id}); the key is kept as a digest and cannot be shown again")
    console.result({**key.as_dict(), "key": text}, text)


def _utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%MZ")
