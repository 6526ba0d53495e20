"""Deployment: how the plan's gateway stands on this machine. Reads its keys; asks nothing over the network."""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Iterator
from pathlib import Path

from conch.checklist.certificate import days_left
from conch.checklist.points import Point, person, seen
from conch.gateway.database import Database
from conch.gateway.keys.grants import Key, all_keys
from conch.gateway.transport.tls import context_of
from conch_build.errors import ConchError
from conch_build.plan import Plan
from conch_build.plan_gateway import Gateway
from conch_build.units import format_seconds

_DAY_SECONDS = 86400.0
_SOON_DAYS = 14


def deployment(plan: Plan, home: Path, *, running: bool) -> Iterator[Point]:
    """`home`: where the gateway keeps what outlives it. `running`: its ports are taken, by itself."""
    gateway = plan.serving.gateway
    yield _machine(plan, running)
    local = _is_loopback(gateway.host)
    yield from _keys(gateway, home, local)
    yield from _tls(gateway, local)
    yield _requests_told(gateway)
    if gateway.tracing.capture_content:
        yield person("privacy.traces", "Traces hold the text of prompts: who may read them, and for how long?")
    grace = gateway.limits.drain_timeout
    yield person(
        "deploy.supervised",
        f"Have `conch serve` started again when it ends; on a stop give it {format_seconds(grace)} after SIGTERM.",
    )
    yield person("deploy.network", "Let nobody but the gateway reach Triton's ports: they ask for no key.")
    yield person("deploy.way_back", "Keep the artifacts and the plan served before, and try the way back to them once.")


def _machine(plan: Plan, running: bool) -> Point:
    from conch.doctor import checks
    from conch.hosting import hosting_of

    if plan.engine.backend != "openvino":
        try:
            hosting_of(plan)
        except ConchError as error:
            return Point("machine.ready", "failed", error.what, error.fix)
        return seen("machine.ready", True, "this machine can serve the plan")
    lacking = [
        check
        for check in checks()
        if not (check.ok or check.name.startswith("conch[") or (check.name == "ports" and running))
    ]
    what = "; ".join(check.detail for check in lacking) or "this machine can serve the plan"
    return seen("machine.ready", not lacking, what, "`conch doctor` says what to do.")


def _keys(gateway: Gateway, home: Path, local: bool) -> Iterator[Point]:
    try:
        known = _known(gateway, home)
    except ConchError as error:
        yield Point("keys.guarded", "failed", error.message, error.fix)
        return
    active = [key for key in known if key.state == "active"]
    fix = "`conch keys create NAME` makes one."
    if not known:
        told = f"no API keys: only this machine ({gateway.host}) can ask" if local else "no API keys: anybody could ask"
        yield seen("keys.guarded", local, told, fix)
        return
    yield seen("keys.guarded", bool(active), f"{len(active)} active of {len(known)} API keys", fix)
    soon = time.time() + _SOON_DAYS * _DAY_SECONDS
    ending = [key.grant.name for key in active if key.grant.expires_at is not None and key.grant.expires_at < soon]
    told = f"within {_SOON_DAYS} days end: {', '.join(ending)}" if ending else f"none ends within {_SOON_DAYS} days"
    yield seen("keys.expiry", not ending, told, "Make their successors with `conch keys create NAME`.")
    boundless = [key.grant.name for key in active if not _bounded(key)]
    if boundless:
        yield person("keys.limits", f"These keys may take the whole engine; give them limits or not: {_few(boundless)}")
    else:
        yield seen("keys.limits", True, "every active key has limits")
    yield person("keys.backup", f"Back up {gateway.database.url or home / 'gateway.db'}, and restore it once.")


def _known(gateway: Gateway, home: Path) -> list[Key]:
    if gateway.database.url is None and not (home / "gateway.db").exists():
        return []  # opening it would make it
    database = Database.at(gateway.database.url, home)
    try:
        return database.run_now(all_keys)
    finally:
        database.close_now()


def _bounded(key: Key) -> bool:
    grant = key.grant
    return any(limit is not None for limit in (grant.requests_per_minute, grant.tokens_per_minute, grant.parallel))


def _tls(gateway: Gateway, local: bool) -> Iterator[Point]:
    certificate = gateway.tls.certificate
    if certificate is None and local:
        yield person("tls", "What stands before the gateway for others must speak TLS; the gateway itself does not.")
        return
    if certificate is None:
        told = f"keys and prompts go over the network to {gateway.host} in the clear"
        yield seen("tls", False, told, "Set `serving.gateway.tls.certificate`, or bind to 127.0.0.1 behind a proxy.")
        return
    try:
        context = context_of(gateway.tls)
        assert context is not None
        days = days_left(context, Path(certificate))
    except ConchError as error:
        yield Point("tls", "failed", error.message, error.fix or "Name a certificate that holds.")
        return
    yield seen("tls", days > _SOON_DAYS, f"the certificate holds for {days:.0f} more days", "Renew it.")


def _requests_told(gateway: Gateway) -> Point:
    if gateway.access_log == "off":
        return person(
            "requests.log", "No request leaves a line: decide whether `serving.gateway.access_log` is needed."
        )
    return seen("requests.log", True, f"a line a request to {gateway.access_log}")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _few(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
