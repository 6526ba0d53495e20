"""What is deployed: a plan's engine and repository, the image that serves them, and what must be seen of the disk."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from conch_build.errors import PlanError
from conch_build.files import home
from conch_build.plan import Plan
from conch_build.profiles import container_of, profile_for


@dataclass(frozen=True)
class Built:
    """Where the artifacts lie on the machine that serves them. The repository holds absolute paths of that machine."""

    engine: Path
    repository: Path

    def mounts(self, plan: Plan) -> tuple[str, ...]:
        """Folders to show at the same path. Of Conch's home a part whole, as one artifact points at others."""
        return tuple(dict.fromkeys(str(_part_of_home(path)) for path in self._read(plan)))

    def _read(self, plan: Plan) -> Iterator[Path]:
        yield from (self.engine, self.repository)
        if plan.engine.backend == "tensorrt":  # its engine has adapters and drafts in it
            return
        yield from map(Path, plan.engine.lora.adapters.values())
        draft = plan.engine.speculation.checkpoint
        if plan.engine.backend == "pytorch" and draft is not None and Path(draft).is_absolute():
            yield Path(draft)


def triton_image(plan: Plan) -> str:
    """The plan's container, which must have a tritonserver. Raises PlanError for one that is known to have none."""
    profile, image = profile_for(plan), container_of(plan)
    if any(known.tag == image and not known.triton for known in profile.containers):
        raise PlanError(
            f"{image} has no tritonserver, and no image with TensorRT-LLM {profile.name} is known to have one",
            where="target.container",
            fix="Name an image that has both, take `target.tensorrt_llm: 1.2.1`, or serve with `trtllm-serve`.",
        )
    return image


def _part_of_home(path: Path) -> Path:
    if not path.is_relative_to(home()):
        return path
    return home() / path.relative_to(home()).parts[0]


def check_triton(plan: Plan, what: str) -> None:
    """Raises PlanError for a plan that Triton does not serve, or not with the tensors that the gateway speaks."""
    if plan.serving.disaggregated is not None and plan.cluster is None:
        raise PlanError(
            f"{what} starts one Triton", where="serving.disaggregated", fix="`conch serve` starts those of such a plan."
        )
    if plan.cluster is not None:
        raise PlanError(
            f"{what} serves through Triton, and disaggregated workers are `trtllm-serve`",
            where="serving.disaggregated",
            fix="Start them with the script that `conch build` writes, and `conch gateway` before their proxy as an "
            "`openai` server of `serving.gateway.models`; or leave `disaggregated` out.",
        )
    if plan.serving.triton.layout == "llmapi":
        raise PlanError(
            f"{what} puts the gateway before Triton, and it speaks token ids, which the layout `llmapi` does not take",
            where="serving.triton.layout",
            fix="Take `ensemble` or `tokens`.",
        )


def check_gateway(plan: Plan) -> None:
    """Raises PlanError for files that the plan names and the gateway's container would not have."""
    gateway = plan.serving.gateway
    unfit = {
        "tls.certificate": (gateway.tls.certificate, "Let a proxy before it do TLS."),
        "access_log": (
            gateway.access_log not in ("off", "stdout"),
            "Take `stdout`: a container's log is its standard output.",
        ),
        "database.url": (
            (gateway.database.url or "").startswith("sqlite"),
            "Leave it out (a file in its volume) or name a PostgreSQL.",
        ),
        "models": (
            any(model.engine for model in gateway.models.values()),
            "Only servers with `openai` can be named here: engines of other models have no volume.",
        ),
    }
    for key, (found, fix) in unfit.items():
        if found:
            raise PlanError("it names a file that its container has not", where=f"serving.gateway.{key}", fix=fix)


def gateway_extras(plan: Plan) -> tuple[str, ...]:
    """That the gateway's image needs beside its own libraries."""
    gateway = plan.serving.gateway
    postgres = ("postgres",) if (gateway.database.url or "").startswith("postgresql://") else ()
    redis = ("redis",) if gateway.redis.url else ()
    return (*postgres, *redis, *(("tracing",) if gateway.tracing.endpoint else ()))
