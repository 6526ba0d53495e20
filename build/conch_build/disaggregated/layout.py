"""Which worker runs where: machines in the plan's order, GPUs and ports in theirs. Knows no file and no flag."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from conch_build.errors import PlanError
from conch_build.plan import Disaggregated, Plan, Workers

WHERE = "serving.disaggregated"
Role = Literal["context", "generation"]
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_LAST_PORT = 65535


@dataclass(frozen=True)
class Worker:
    """One `trtllm-serve`. `gpus`: their numbers on its host."""

    role: Role
    index: int
    host: str
    port: int
    gpus: tuple[int, ...]

    @property
    def name(self) -> str:
        return f"{self.role}-{self.index}"

    @property
    def url(self) -> str:
        """As the proxy's file has it: without a scheme."""
        return f"{self.host}:{self.port}"


def settings_of(plan: Plan) -> Disaggregated:
    """Raises PlanError for a plan whose engine is not served so."""
    settings = plan.serving.disaggregated
    if settings is None:
        raise PlanError("is not in the plan", where=WHERE, fix="Add it, with `context` and `generation`.")
    if plan.engine.backend != "pytorch":
        raise PlanError(
            f"serves the backend `pytorch`, not `{plan.engine.backend}`",
            where=WHERE,
            fix="Set `engine.backend: pytorch`, or remove it.",
        )
    parallel = plan.engine.parallel
    if parallel.tensor > 1 or parallel.pipeline > 1:
        raise PlanError(
            "does not apply to disaggregated workers",
            where="engine.parallel",
            fix=f"Set `tensor` and `pipeline` under `{WHERE}.context` and `.generation`.",
        )
    return settings


def workers_of(plan: Plan) -> list[Worker]:
    """Context workers, then generation workers, machine by machine; the proxy's port comes before theirs.

    Raises PlanError when a host is not a host, or when the machines have too few GPUs.
    """
    settings = settings_of(plan)
    for host in settings.hosts:
        if not _HOST.fullmatch(host):
            raise PlanError(
                f"{host!r} is not the name of a machine",
                where=f"{WHERE}.hosts",
                fix="Write names or addresses alone: no scheme, no port.",
            )
    if repeated := {host for host in settings.hosts if settings.hosts.count(host) > 1}:
        raise PlanError(f"names {', '.join(sorted(repeated))} twice", where=f"{WHERE}.hosts", fix="Name each once.")
    if settings.port == 0:
        what = "must be a port that the workers' files can name"
        raise PlanError(what, where=f"{WHERE}.port", fix="Set it to 8000, or another from 1 on.")
    free = {host: list(range(plan.target.gpus_per_node)) for host in settings.hosts}
    workers: list[Worker] = []
    groups: tuple[tuple[Role, Workers], ...] = (("context", settings.context), ("generation", settings.generation))
    for role, group in groups:
        for index in range(group.instances):
            host = _host_for(group.tensor * group.pipeline, free, plan, settings)
            gpus = tuple(free[host].pop(0) for _ in range(group.tensor * group.pipeline))
            workers.append(Worker(role, index, host, settings.port + 1 + len(workers), gpus))
    if workers[-1].port > _LAST_PORT:
        raise PlanError(
            f"{len(workers)} workers take the ports after it, up to {workers[-1].port}",
            where=f"{WHERE}.port",
            fix=f"Set it to {_LAST_PORT - len(workers)} or less.",
        )
    return workers


def _host_for(gpus: int, free: dict[str, list[int]], plan: Plan, settings: Disaggregated) -> str:
    """The first machine that has so many GPUs left: a worker does not span machines."""
    for host, left in free.items():
        if len(left) >= gpus:
            return host
    groups = (settings.context, settings.generation)
    needed = sum(group.instances * group.tensor * group.pipeline for group in groups)
    have = f"{len(free)} of {plan.target.gpus_per_node} GPUs"
    raise PlanError(
        f"the workers take {needed} GPUs, one of them {gpus} on one machine, which do not fit on the machines: {have}",
        where=WHERE,
        fix=f"Name more machines under `{WHERE}.hosts`, or lower `instances` or `tensor`.",
    )
