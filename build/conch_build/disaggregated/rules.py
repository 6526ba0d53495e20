"""What the three files must agree on: workers that start may still hang, or send requests nowhere.

Works on the files as they will be read, so it also sees what `llm_args` of a plan changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from conch_build.disaggregated.arguments import needs_no_overlap
from conch_build.errors import PlanError
from conch_build.profiles import Profile

Args = Mapping[str, Any]

TOP_LEVEL = frozenset(
    {
        *("hostname", "port", "max_retries", "perf_metrics_max_requests"),
        *("context_servers", "generation_servers", "conditional_disagg_config", "disagg_cluster"),
    }
)
"""Keys of the proxy's file that 1.2 knows; any other would be taken for an argument of the workers."""

ROUTERS: Mapping[str, frozenset[str]] = {
    "round_robin": frozenset(),
    "load_balancing": frozenset({"use_tokens"}),
    "kv_cache_aware": frozenset({"use_tokens", "max_batch_size", "tokens_per_block"}),
}
"""Router -> its own settings."""

TRANSPORTS = ("DEFAULT", "UCX", "NIXL", "MOONCAKE")


@dataclass(frozen=True)
class Cluster:
    """The three files, and the longest prompt that the workers must take."""

    proxy: Args
    context: Args
    generation: Args
    longest_prompt: int


def check(cluster: Cluster, profile: Profile) -> None:
    """Raises PlanError with everything that is wrong."""
    if problems := list(problems_of(cluster, profile)):
        raise PlanError("; ".join(problems), where="serving.disaggregated")


def problems_of(cluster: Cluster, profile: Profile) -> Iterator[str]:
    """One sentence for each broken rule."""
    yield from _proxy(cluster.proxy)
    for name in ("context_servers", "generation_servers"):
        yield from _group(name, cluster.proxy.get(name) or {}, cluster.proxy)
    yield from _transport(cluster)
    yield from _same_cache(cluster)
    yield from _routing(cluster)
    if needs_no_overlap(profile) and not cluster.context.get("disable_overlap_scheduler"):
        yield f"context workers of {profile.name} need `disable_overlap_scheduler: true`"
    stages, ranks = cluster.context.get("pipeline_parallel_size", 1), cluster.generation.get("tensor_parallel_size", 1)
    if needs_no_overlap(profile) and stages > 1 and ranks > 1:
        yield (
            f"{profile.name} can hang when context workers have pipeline stages ({stages}) and generation workers are "
            f"tensor parallel ({ranks}): give the context workers `tensor` instead"
        )


def _proxy(proxy: Args) -> Iterator[str]:
    if unknown := sorted(proxy.keys() - TOP_LEVEL):
        yield f"the proxy's file has {', '.join(unknown)}, which this release would take for arguments of the workers"
    urls = [str(url) for name in ("context_servers", "generation_servers") for url in _urls(proxy.get(name) or {})]
    if twice := sorted({url for url in urls if urls.count(url) > 1}):
        yield f"{', '.join(twice)} is given twice"


def _group(name: str, group: Args, proxy: Args) -> Iterator[str]:
    urls = _urls(group)
    if not urls:
        yield f"{name} has no urls"
    if group.get("num_instances", 1) != len(urls):
        yield f"{name} has num_instances {group.get('num_instances', 1)} and {len(urls)} urls"
    for url in urls:
        host, _, port = str(url).rpartition(":")
        if "://" in str(url) or "/" in str(url) or not host or not port.isdigit():
            yield f"{url} in {name} is not host:port"
        elif host == proxy.get("hostname") and int(port) == proxy.get("port"):
            yield f"{url} in {name} is the proxy itself"


def _transport(cluster: Cluster) -> Iterator[str]:
    backends = []
    for role, args in (("context", cluster.context), ("generation", cluster.generation)):
        config = args.get("cache_transceiver_config") or {}
        backends.append(config.get("backend"))
        if config.get("backend") not in TRANSPORTS:
            yield f"{role} workers need a `cache_transceiver_config.backend`: {', '.join(TRANSPORTS)}"
        if (config.get("max_tokens_in_buffer") or 0) < cluster.longest_prompt:
            yield (
                f"the buffer of {role} workers holds {config.get('max_tokens_in_buffer') or 0} tokens and prompts have "
                f"up to {cluster.longest_prompt}: raise `cache_transceiver_config.max_tokens_in_buffer`"
            )
    if backends[0] != backends[1]:
        yield f"context workers send caches by {backends[0]} and generation workers take them by {backends[1]}"


def _same_cache(cluster: Cluster) -> Iterator[str]:
    for field, default in (("tokens_per_block", 32), ("dtype", "auto")):
        ours, theirs = (_cache(args).get(field, default) for args in (cluster.context, cluster.generation))
        if ours != theirs:
            yield f"`kv_cache_config.{field}` is {ours} on context workers and {theirs} on generation workers"


def _routing(cluster: Cluster) -> Iterator[str]:
    behind = (cluster.proxy.get("generation_servers") or {}).get("router") or {}
    if cluster.proxy.get("conditional_disagg_config") and behind.get("type") != "kv_cache_aware":
        yield (
            "the proxy leaves short prompts to generation workers (`max_local_prefill_length`) with the router "
            "`kv_cache_aware` alone: what counts is how much of a prompt a worker holds already"
        )
    for role, args in (("context", cluster.context), ("generation", cluster.generation)):
        router = (cluster.proxy.get(f"{role}_servers") or {}).get("router") or {"type": "round_robin"}
        kind = router.get("type", "round_robin")
        if kind not in ROUTERS:
            yield f"there is no router {kind}: {', '.join(ROUTERS)}"
            continue
        if unknown := sorted(router.keys() - ROUTERS[kind] - {"type"}):
            yield f"the router {kind} has no {', '.join(unknown)}"
        if kind != "kv_cache_aware":
            continue
        cache = _cache(args)
        if not cache.get("event_buffer_max_size"):
            yield f"kv_cache_aware needs cache events of {role} workers: set `kv_cache_config.event_buffer_max_size`"
        if not cache.get("enable_block_reuse", True):
            yield f"kv_cache_aware needs `kv_cache_config.enable_block_reuse` on {role} workers"
        if router.get("tokens_per_block", 32) != cache.get("tokens_per_block", 32):
            yield (
                f"the router counts blocks of {router.get('tokens_per_block', 32)} tokens and {role} workers have "
                f"blocks of {cache.get('tokens_per_block', 32)}"
            )


def _cache(args: Args) -> Args:
    return args.get("kv_cache_config") or {}


def _urls(group: Args) -> Sequence[Any]:
    return group.get("urls") or ()
