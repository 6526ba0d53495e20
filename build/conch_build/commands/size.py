"""`conch size`: the memory of a plan, a checkpoint or bare numbers, to the byte, and the GPUs that hold it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from conch_build.console import Console, with_console

if TYPE_CHECKING:
    from conch_build.model_info import ModelInfo
    from conch_build.plan import Plan

_BARE = ("layers", "kv_heads", "head_dim", "latent", "rope_dim", "window", "window_every")


@click.command()
@click.argument("what", default=None, required=False)
@click.option("--tokens", type=int, help="Of a request, prompt and answer together.")
@click.option("--prompt", type=int, help="How many of them are the prompt.  [default: half]")
@click.option("--requests", type=int, help="At once.")
@click.option("--rate", type=float, help="Requests a second: how many replicas keep up at most.")
@click.option("--kv-dtype", help="u8, bf16, f32 on CPUs; bf16, fp16, fp8, int8, nvfp4 on GPUs.")
@click.option("--block", type=int, help="Tokens of a KV block.  [default: the plan's; of bare numbers 1]")
@click.option("--format", "form", help="Of the weights, as the plan's `quantization.format`.")
@click.option("--gpu", help="As `h100`; without it the plan's, or the CPU engine.")
@click.option("--fleet", is_flag=True, help="Which GPU, and how many, for these requests.")
@click.option("--tensor", type=int, help="GPUs that each layer is spread over.")
@click.option("--pipeline", type=int, help="GPUs, or groups of them, that the layers are spread over.")
@click.option("--replicas", type=int, help="Engines beside each other.")
@click.option("--layers", type=int, help="Bare numbers instead of WHAT: only the KV cache is sized.")
@click.option("--kv-heads", type=int)
@click.option("--head-dim", type=int)
@click.option("--latent", type=int, help="Of multi-head latent attention, instead of heads: the cached vector.")
@click.option("--rope-dim", type=int, help="And the rotated key beside it.")
@click.option("--window", type=int, help="Tokens that layers look back.")
@click.option("--window-every", type=int, help="Every so-many-th layer has the window.  [default: 1]")
@with_console
def size(console: Console, what: str | None, fleet: bool, rate: float | None, **options: Any) -> None:
    """Size WHAT: a plan (conch.yaml), a checkpoint (directory, hub id, .gguf, `sample`) or a config.json alone.

    Weights are not needed. Bytes are exact for weights and KV cache; activations and workspace are estimates.
    """
    from conch_build.errors import InputError

    bare = {name: options.pop(name) for name in _BARE}
    if any(value is not None for value in bare.values()):
        if what is not None:
            raise InputError("bare numbers and a model exclude each other", where=what, fix="Leave one of them out.")
        _size_bare(console, bare, options)
        return
    if what is None and not Path("conch.yaml").is_file():
        fix = "Name a plan or a checkpoint, or give --layers, --kv-heads and --head-dim."
        raise InputError("there is nothing to size", fix=fix)
    _size_model(console, what or "conch.yaml", fleet, rate, options)


def _size_model(console: Console, what: str, fleet: bool, rate: float | None, options: dict[str, Any]) -> None:
    from dataclasses import asdict

    from conch_build.gpu.cards import gpu_of
    from conch_build.size.fleet import choices
    from conch_build.size.report import fleet_report, size_report, workload_of
    from conch_build.size.source import draft_of, plan_and_model
    from conch_build.size.text import cache_text, choices_text, report_text

    plan, info, name = plan_and_model(what, console.note)
    plan = _placed(plan, info, name, fleet, options)
    work = workload_of(plan, info, options["tokens"], options["prompt"], options["requests"])
    if fleet:
        found = choices(plan, info, work, rate)
        report = fleet_report(plan, info, work)
        about = {**report, "choices": [{**asdict(choice), "gpus": choice.gpus} for choice in found]}
        console.result(about, f"{cache_text(report['kv'])}\n\n{choices_text(found)}")
        return
    gpu = None if plan.engine.backend == "openvino" else gpu_of(plan)
    report = size_report(plan, info, gpu, draft_of(plan, console.note), work)
    console.result(report, report_text(report))


def _placed(plan: Plan | None, info: ModelInfo, name: str, fleet: bool, options: dict[str, Any]) -> Plan:
    """The plan, or one of defaults, with what the options say instead."""
    from conch_build.gpu.cards import find_gpu
    from conch_build.size.source import bare_plan, changed

    gpu = None if options["gpu"] is None else find_gpu(options["gpu"]).name
    if plan is None:
        length = min(info.max_position_embeddings, options["tokens"] or 4096)
        plan = bare_plan("model", name, "pytorch" if gpu or fleet else "openvino", length)
    backend = "pytorch" if (gpu or fleet) and plan.engine.backend == "openvino" else None
    return changed(
        plan,
        {
            "engine.backend": backend,
            "target.gpu": gpu,
            "quantization.format": options["form"],
            "quantization.kv_cache": options["kv_dtype"],
            "engine.kv_cache.tokens_per_block": options["block"],
            "engine.parallel.tensor": options["tensor"],
            "engine.parallel.pipeline": options["pipeline"],
            "serving.replicas": options["replicas"],
        },
    )


def _size_bare(console: Console, bare: dict[str, int | None], options: dict[str, Any]) -> None:
    from conch_build.errors import InputError
    from conch_build.size.cache import latent_cache, plain_cache
    from conch_build.size.report import Workload, cache_report
    from conch_build.size.text import cache_text

    def number(name: str, default: int | None = None) -> int:
        value = bare[name] if bare[name] is not None else default
        if value is None:
            raise InputError("is missing", where=f"--{name.replace('_', '-')}", fix="Give it a number.")
        if not 1 <= value < 1 << 31:
            raise InputError(f"must be from 1 to 2,147,483,647, not {value}", where=f"--{name.replace('_', '-')}")
        return value

    given = {name: 1 if options[name] is None else options[name] for name in ("tokens", "requests", "block")}
    work = Workload(given["tokens"], 1, given["requests"])
    dtype = options["kv_dtype"] or "bf16"
    layers, block = number("layers"), max(1, given["block"])
    if bare["latent"] is not None:
        cache = latent_cache(layers, number("latent"), number("rope_dim"), dtype, block)
    else:
        window, every = number("window", 1) if bare["window"] is not None else 0, number("window_every", 1)
        windows = [window if index % every == 0 else 0 for index in range(layers)]
        cache = plain_cache(layers, number("kv_heads"), number("head_dim"), dtype, block, windows)
    kv = cache_report(cache, dtype, "full", work.tokens, work.requests)
    console.result({"kv": kv}, cache_text(kv))
