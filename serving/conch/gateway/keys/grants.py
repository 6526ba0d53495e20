"""API keys as the database keeps them: what each may do, and a digest in its stead. Knows nothing of HTTP.

A key is `sk-conch-`, the id that it is looked up by, and 256 random bits: a plain SHA-256 of it cannot be searched
through, as one of a password could. Keys are never deleted, so that a gateway that had keys is never open again.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import secrets
import time
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Column, Connection, Float, Integer, RowMapping, String, Table, Text, func, insert, select, update

from conch.gateway.database import metadata
from conch_build.errors import InputError

SCOPES = ("inference", "batch", "adapters", "metrics")
"""Asking models; files and batches; loading and unloading adapters; reading figures."""
DEFAULT_SCOPES = ("inference", "batch")
_KEY = re.compile(r"sk-conch-([0-9a-f]{16})-[A-Za-z0-9_-]{43}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_MOST = (1 << 31) - 1

_keys = Table(
    "keys",
    metadata,
    Column("id", String(16), primary_key=True),
    Column("name", String(64), nullable=False, unique=True),
    Column("digest", String(64), nullable=False),
    Column("old_digest", String(64)),
    Column("old_until", Float),
    Column("scopes", Text, nullable=False),
    Column("models", Text),
    Column("requests_per_minute", Integer),
    Column("tokens_per_minute", Integer),
    Column("parallel", Integer),
    Column("created_at", Float, nullable=False),
    Column("expires_at", Float),
    Column("revoked_at", Float),
    Column("revision", Integer, nullable=False),
)


@dataclass(frozen=True)
class Grant:
    """What a key may do. Raises InputError for what makes no sense. Times are seconds since 1970."""

    name: str
    scopes: tuple[str, ...] = DEFAULT_SCOPES
    models: tuple[str, ...] | None = None
    """Of models, adapters and experiments; None: all."""
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    """Of prompts and of what their answers may have."""
    parallel: int | None = None
    """Requests at once."""
    expires_at: float | None = None

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            fix = "Use up to 64 letters, digits, dots, dashes and underscores."
            raise InputError(f"{self.name[:80]!r} cannot be a key's name", fix=fix)
        if unknown := set(self.scopes) - set(SCOPES):
            raise InputError(f"there is no scope {sorted(unknown)[0][:80]!r}", fix=f"There are: {', '.join(SCOPES)}.")
        if not self.scopes:
            raise InputError("a key without a scope opens nothing", fix=f"There are: {', '.join(SCOPES)}.")
        if self.models is not None and not all(name.strip() for name in self.models):
            raise InputError("a model has no empty name")
        for limit in ("requests_per_minute", "tokens_per_minute", "parallel"):
            value = getattr(self, limit)
            if value is not None and not 1 <= value <= _MOST:
                raise InputError(f"{limit} is from 1 to {_MOST}, not {value}", fix="Leave it out for no limit.")
        if self.expires_at is not None and self.expires_at <= time.time():
            raise InputError("the key would have expired before it was made", fix="Give a time to come.")


@dataclass(frozen=True)
class Key:
    """One key as it stands."""

    id: str
    grant: Grant
    digest: str
    old_digest: str | None
    """Of what was rotated away, which holds until `old_until`."""
    old_until: float | None
    created_at: float
    revoked_at: float | None

    @property
    def state(self) -> str:
        """active, expired or revoked."""
        if self.revoked_at is not None:
            return "revoked"
        expires_at = self.grant.expires_at
        return "expired" if expires_at is not None and expires_at <= time.time() else "active"

    def opens(self, text: str) -> bool:
        """Whether `text` is this key. In constant time."""
        given = digest_of(text)
        new = hmac.compare_digest(given, self.digest)
        old = hmac.compare_digest(given, self.old_digest or "")
        return new or (old and self.old_until is not None and time.time() < self.old_until)

    def may_ask(self, model: str) -> bool:
        return self.grant.models is None or model in self.grant.models

    def as_dict(self) -> dict[str, Any]:
        """What a person may see of it."""
        grant = self.grant
        return {
            "id": self.id,
            "name": grant.name,
            "state": self.state,
            "scopes": list(grant.scopes),
            "models": None if grant.models is None else list(grant.models),
            "requests_per_minute": grant.requests_per_minute,
            "tokens_per_minute": grant.tokens_per_minute,
            "parallel": grant.parallel,
            "created_at": self.created_at,
            "expires_at": grant.expires_at,
            "revoked_at": self.revoked_at,
        }


def id_in(text: str) -> str | None:
    """The id in something that is shaped like a key."""
    match = _KEY.fullmatch(text)
    return match[1] if match else None


def digest_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def create(connection: Connection, grant: Grant) -> tuple[Key, str]:
    """A new key, and the text that is shown this once. Raises InputError when its name is taken."""
    if connection.scalar(select(_keys.c.id).where(_keys.c.name == grant.name)) is not None:
        fix = "Revoked keys keep their names; take another, or `conch keys rotate` the key."
        raise InputError(f"there is a key {grant.name!r} already", fix=fix)
    name = secrets.token_hex(8)
    text = _text(name)
    row = {
        "id": name,
        "name": grant.name,
        "digest": digest_of(text),
        "scopes": json.dumps(grant.scopes),
        "models": None if grant.models is None else json.dumps(grant.models),
        "requests_per_minute": grant.requests_per_minute,
        "tokens_per_minute": grant.tokens_per_minute,
        "parallel": grant.parallel,
        "created_at": time.time(),
        "expires_at": grant.expires_at,
        "revision": 1,
    }
    connection.execute(insert(_keys).values(row))
    return find(connection, name), text


def rotate(connection: Connection, name: str, grace_seconds: float = 0.0) -> tuple[Key, str]:
    """A new text for a key, all else as it was; the old one holds for the grace. Raises InputError."""
    key = find(connection, name)
    if key.revoked_at is not None:
        raise InputError(f"the key {key.grant.name!r} is revoked", fix="Create a new one.")
    text, until = _text(key.id), time.time() + grace_seconds
    old = (key.digest, until) if grace_seconds else (None, None)
    _change(connection, key, digest=digest_of(text), old_digest=old[0], old_until=old[1])
    return find(connection, key.id), text


def revoke(connection: Connection, name: str) -> Key:
    """For good. Raises InputError when there is no such key."""
    key = find(connection, name)
    if key.revoked_at is not None:
        return key
    now = time.time()
    _change(connection, key, revoked_at=now)
    return replace(key, revoked_at=now)


def find(connection: Connection, name: str) -> Key:
    """By its id or its name. Raises InputError."""
    row = connection.execute(select(_keys).where((_keys.c.id == name) | (_keys.c.name == name))).mappings().first()
    if row is None:
        raise InputError(f"there is no key {name[:80]!r}", fix="`conch keys list` shows them.")
    return _key(row)


def all_keys(connection: Connection) -> list[Key]:
    """The oldest first."""
    return [_key(row) for row in connection.execute(select(_keys).order_by(_keys.c.created_at)).mappings()]


def revision(connection: Connection) -> int:
    """Another number after every change of any key."""
    return int(connection.scalar(select(func.coalesce(func.sum(_keys.c.revision), 0))) or 0)


def _change(connection: Connection, key: Key, **values: Any) -> None:
    connection.execute(update(_keys).where(_keys.c.id == key.id).values(revision=_keys.c.revision + 1, **values))


def _text(name: str) -> str:
    return f"sk-conch-{name}-{secrets.token_urlsafe(32)}"


def _key(row: RowMapping) -> Key:
    # What a later Conch may have granted beyond what this one knows opens nothing here.
    scopes = tuple(scope for scope in json.loads(row["scopes"]) if scope in SCOPES)
    grant = _Kept(
        name=row["name"],
        scopes=scopes,
        models=None if row["models"] is None else tuple(json.loads(row["models"])),
        requests_per_minute=row["requests_per_minute"],
        tokens_per_minute=row["tokens_per_minute"],
        parallel=row["parallel"],
        expires_at=row["expires_at"],
    )
    taken = ("id", "digest", "old_digest", "old_until", "created_at", "revoked_at")
    return Key(grant=grant, **{name: row[name] for name in taken})


@dataclass(frozen=True)
class _Kept(Grant):
    """A grant that was checked when it was made, and may have expired since."""

    def __post_init__(self) -> None:
        pass
