"""The proxy's file: where the workers are and how requests are spread over them. Only what every 1.2 release knows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from conch_build.disaggregated.layout import Role, Worker, settings_of
from conch_build.plan import Plan


def proxy_config(plan: Plan, workers: Sequence[Worker]) -> dict[str, Any]:
    """The file of `trtllm-serve disaggregated -c`; the proxy runs on the first machine."""
    settings = settings_of(plan)
    config: dict[str, Any] = {"hostname": settings.hosts[0], "port": settings.port}
    if settings.max_local_prefill_length:
        config["conditional_disagg_config"] = {"max_local_prefill_length": settings.max_local_prefill_length}
    return config | {
        "context_servers": _group(plan, workers, "context"),
        "generation_servers": _group(plan, workers, "generation"),
    }


def _group(plan: Plan, workers: Sequence[Worker], role: Role) -> dict[str, Any]:
    urls = [worker.url for worker in workers if worker.role == role]
    return {"num_instances": len(urls), "router": _router(plan), "urls": urls}


def _router(plan: Plan) -> dict[str, Any]:
    kind = settings_of(plan).router
    if kind != "kv_cache_aware":
        return {"type": kind}
    return {
        "type": kind,
        "max_batch_size": plan.engine.max_batch_size,
        "tokens_per_block": plan.engine.kv_cache.tokens_per_block,
    }
