"""What arguments of the LLM API say of each other. Wrong types are the matter of `arguments` and passed over here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from conch_build.profiles import speculation_rules
from conch_build.profiles.presence import LATER
from conch_build.profiles.problem import Problem
from conch_build.profiles.types import whole

Args = Mapping[str, Any]

ATTENTION = ("TRTLLM", "VANILLA", "FLASHINFER", "FLASHINFER_STAR_ATTENTION")
"""Upstream takes any other name for the first of these, in silence."""


def problems(args: Args, backend: str, snapshots: str) -> Iterator[Problem]:
    """Every broken rule."""
    yield from _backend(args, backend)
    yield from _kv_cache(args, backend)
    yield from _cuda_graphs(args, snapshots)
    yield from _adapters(args, snapshots)
    yield from _experts(args)
    yield from _ray(args)
    if inner(args, "peft_cache_config").get("lora_prefetch_dir") is not None:
        yield Problem("peft_cache_config.lora_prefetch_dir", "is not supported: setting it fails", "Remove it.")
    yield from _connector(args)
    yield from speculation_rules.problems(args, backend, snapshots)


def warnings(args: Args, snapshots: str) -> Iterator[Problem]:
    """What is taken, and does not do what it looks like."""
    batch, tokens = whole(args.get("max_batch_size")), whole(args.get("max_num_tokens"))
    if batch and tokens and batch > tokens:
        yield Problem(
            "max_batch_size",
            f"{batch} requests are more than the {tokens} tokens of one step (`max_num_tokens`), which limit them",
            f"Set `max_batch_size` to at most {tokens}, or raise `max_num_tokens`.",
        )
    lora = args.get("lora_config")
    if isinstance(lora, Mapping) and not lora.get("lora_dir") and not lora.get("lora_target_modules"):
        yield Problem(
            "lora_config.lora_target_modules",
            "is empty, as is `lora_dir`: that stands for every module, and takes the memory of them all",
            "Name the modules that adapters touch.",
        )
    if inner(args, "cache_transceiver_config").get("backend") == "MPI":
        yield Problem("cache_transceiver_config.backend", "MPI is deprecated", "Use `DEFAULT`.")
    attention = args.get("attn_backend", ATTENTION[0])
    if attention not in ATTENTION:
        what = f"{attention!r} is none that is known, and TensorRT-LLM takes {ATTENTION[0]} in its place"
        yield Problem("attn_backend", what, f"Use one of {', '.join(ATTENTION)}.")
    yield from speculation_rules.warnings(args, snapshots)


def graphs_take_adapters(snapshots: str) -> bool:
    """Whether steps with adapters may be captured: graphs of 1.2 answer otherwise than the same step without one."""
    return snapshots == LATER


def inner(args: Args, name: str) -> Args:
    """A nested object, empty where there is none."""
    value = args.get(name)
    return value if isinstance(value, Mapping) else {}


def _backend(args: Args, backend: str) -> Iterator[Problem]:
    given = args.get("backend")
    if given is not None and given != backend:
        yield Problem("backend", f"is {given!r}, and these are arguments of the {backend} backend", "Remove it.")


def _kv_cache(args: Args, backend: str) -> Iterator[Problem]:
    cache = inner(args, "kv_cache_config")
    if backend == "tensorrt" and cache.get("dtype", "auto") != "auto":
        what = "is decided by an engine's checkpoint and may only be auto here"
        yield Problem("kv_cache_config.dtype", what, "Remove it.")
    context = inner(args, "cp_config")
    own = context.get("tokens_per_block")
    block = cache.get("tokens_per_block", 32)
    if context.get("cp_type") == "HELIX" and own is not None and own != block:
        what = f"is {own}, and `kv_cache_config.tokens_per_block` is {block}: Helix needs them equal"
        yield Problem("cp_config.tokens_per_block", what, f"Set it to {block}.")


def _cuda_graphs(args: Args, snapshots: str) -> Iterator[Problem]:
    graphs = inner(args, "cuda_graph_config")
    sizes, largest = graphs.get("batch_sizes"), whole(graphs.get("max_batch_size"))
    if not isinstance(sizes, list) or not sizes or not largest or not all(whole(size) for size in sizes):
        return
    key = "cuda_graph_config.max_batch_size"
    if snapshots != LATER:
        what = "and `batch_sizes` both say what is captured, which this release may refuse"
        yield Problem(key, what, "Remove one of them.")
    elif largest != max(sizes):
        yield Problem(key, f"is {largest}, and the largest of `batch_sizes` is {max(sizes)}", "Remove it.")


def _adapters(args: Args, snapshots: str) -> Iterator[Problem]:
    on = args.get("lora_config") is not None and args.get("cuda_graph_config") is not None
    if on and not graphs_take_adapters(snapshots):
        yield Problem("cuda_graph_config", "does not go with adapters in this release: answers change", "Remove it.")


def _experts(args: Args) -> Iterator[Problem]:
    tensor = whole(args.get("tensor_parallel_size"), 1)
    experts, split = whole(args.get("moe_expert_parallel_size")), whole(args.get("moe_tensor_parallel_size"))
    cluster = whole(args.get("moe_cluster_parallel_size"), 1)
    if experts > 0 and split > 0 and cluster > 0 and experts * split * cluster != tensor:
        what = f"{experts} x {split} of `moe_tensor_parallel_size` is not `tensor_parallel_size` {tensor}"
        yield Problem("moe_expert_parallel_size", what, "Give one of the two, a divisor.")
    elif experts > 0 and tensor % experts:
        what = f"{experts} does not divide `tensor_parallel_size` {tensor}"
        yield Problem("moe_expert_parallel_size", what, "Set it to a divisor.")
    slots = whole(inner(inner(args, "moe_config"), "load_balancer").get("num_slots"))
    if experts > 0 and slots % experts:
        what = f"{slots} slots cannot be shared evenly by {experts} ranks of `moe_expert_parallel_size`"
        yield Problem("moe_config.load_balancer.num_slots", what, f"Set it to a multiple of {experts}.")


def _ray(args: Args) -> Iterator[Problem]:
    for name in ("ray_worker_extension_cls", "ray_placement_config"):
        if args.get(name) is not None and args.get("orchestrator_type") != "ray":
            yield Problem(name, "needs `orchestrator_type: ray`", "Set that, or remove it.")


def _connector(args: Args) -> Iterator[Problem]:
    connector = args.get("kv_connector_config")
    if isinstance(connector, Mapping) and connector.get("connector") is None:
        for name in ("connector_module", "connector_scheduler_class", "connector_worker_class"):
            if connector.get(name) is None:
                yield Problem(f"kv_connector_config.{name}", "is missing", f"Set `kv_connector_config.{name}`.")
