"""Who may ask: the keys as the database has them, held in memory, and the dependency that every route has of them.

No request waits for the database, and none is let through or sent away by its path: a route names the scope it needs.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
from collections.abc import AsyncIterator
from pathlib import Path

from fastapi import Depends, Request
from fastapi.params import Depends as Dependency
from fastapi.security import HTTPBearer

from conch.gateway.background import background
from conch.gateway.database import Database
from conch.gateway.errors import KeyRefused, NotAllowed
from conch.gateway.exchange import Exchange, Observer
from conch.gateway.keys import grants as keys
from conch.gateway.keys.grants import Key
from conch.gateway.keys.limits import KeyLimits, key_of
from conch_build.errors import InputError, SetupError, UnavailableError
from conch_build.plan_gateway import Gateway

FOLLOW_SECONDS = 1.0
"""How soon a key that another process has made, rotated or revoked is so here."""

log = logging.getLogger("conch.gateway")


class Authority(Observer):
    """Knows the keys. Lets exchanges ask only for the models that their keys may."""

    def __init__(self, database: Database, limits: KeyLimits, *, guarded: bool = False) -> None:
        """`guarded`: who has no key is sent away also before there is one. Raises UnavailableError."""
        self.limits = limits
        self._database = database
        self._revision = 0
        self._keys: dict[str, Key] = {}
        self.guarded = guarded
        """There are keys, or were, or must be: who has none is sent away."""
        self._take(*database.run_now(lambda connection: (keys.revision(connection), keys.all_keys(connection))))

    async def key_for(self, owner: str) -> Key | None:
        """What `request.state.key` is for work that the key of that id, or nobody, has left here to be done later.

        Raises KeyRefused when it may not be done any more.
        """
        key = self._keys.get(owner)
        if self.guarded and (key is None or key.state != "active"):
            raise KeyRefused("The API key that asked for this may not be used any more.")
        return key

    def key_in(self, headers: list[str], scope: str | None) -> Key | None:
        """The key in the `Authorization` headers of a request; None where there are no keys.

        Raises KeyRefused, NotAllowed.
        """
        if not self.guarded:
            return None
        kind, _, text = headers[0].partition(" ") if len(headers) == 1 else ("", "", "")
        text = text.strip()
        if kind.lower() != "bearer" or not text:
            raise KeyRefused("An API key is needed, as `Authorization: Bearer KEY`.", code="missing_api_key")
        key = self._keys.get(keys.id_in(text) or "")
        if key is None or not key.opens(text):
            raise KeyRefused("Incorrect API key provided.")
        if key.state != "active":
            raise KeyRefused(f"This API key is {key.state}.")
        if scope is not None and scope not in key.grant.scopes:
            words = f"This API key has insufficient permissions for this operation. Missing scopes: {scope}."
            raise NotAllowed(words, code="missing_scope")
        return key

    def begun(self, exchange: Exchange) -> None:
        """Raises NotAllowed."""
        check_model(exchange.request, exchange.model)

    @contextlib.asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        """Keeps up with the database inside. While it is away the keys stay as they were."""
        async with background(self._follow()):
            yield

    async def _follow(self) -> None:
        away = False
        while True:
            await asyncio.sleep(FOLLOW_SECONDS)
            try:
                await self._refresh()
                away = False
            except UnavailableError as error:
                if not away:
                    log.warning("keys cannot be read, so none is revoked: %s", error.message)
                away = True
            except Exception:  # whatever it is, the next turn must come: keys would be revoked in vain
                log.exception("keys could not be read")

    async def _refresh(self) -> None:
        revision = await self._database.read(keys.revision)
        if revision != self._revision:
            self._take(revision, await self._database.read(keys.all_keys))

    def _take(self, revision: int, known: list[Key]) -> None:
        self._revision = revision
        self._keys = {key.id: key for key in known}
        self.guarded = self.guarded or bool(known)


class Needs(HTTPBearer):
    """A request with a key of that scope; of any, where it is None."""

    def __init__(self, scope: str | None) -> None:
        super().__init__(scheme_name="key", description="A key of `conch keys create`", auto_error=False)
        self.scope = scope

    async def __call__(self, request: Request) -> None:  # type: ignore[override]
        authority: Authority = request.app.state.authority
        key = authority.key_in(request.headers.getlist("authorization"), self.scope)
        request.state.key = key
        if key is not None:
            authority.limits.tell(request, key)


def needs(scope: str | None = None) -> Dependency:
    """For a route's or a router's `dependencies`."""
    dependency: Dependency = Depends(Needs(scope))
    return dependency


def check_exposed(host: str, guarded: bool) -> None:
    """Raises SetupError when anybody could ask who reaches the address `host`."""
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        raise InputError("it is no address", where=host[:80], fix="Give one as 127.0.0.1 or ::1.") from None
    if not guarded and not loopback:
        fix = "Make one with `conch keys create NAME`, or set `serving.gateway.host` to 127.0.0.1."
        raise SetupError("there are no API keys, and whoever reaches this address could ask", where=host, fix=fix)


def check_place(host: str, plan: Gateway, home: Path) -> None:
    """`check_exposed`, of a gateway that is not there yet."""
    database = Database.at(plan.database.url, home)
    try:
        check_exposed(host, database.run_now(keys.revision) > 0)
    finally:
        database.close_now()


def may_ask(request: Request, model: str) -> bool:
    """Whether the request's key may use this model, adapter or experiment."""
    key = key_of(request)
    return key is None or key.may_ask(model)


def check_model(request: Request, model: str) -> None:
    """Raises NotAllowed."""
    if not may_ask(request, model):
        raise NotAllowed(f"This API key does not have access to the model '{model}'.", code="model_not_found")
