"""`conch simulate`: a fleet in simulated time, from eight GPUs to thousands, or engines of this machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from conch_build.console import Console, table, with_console
from conch_build.errors import InputError

if TYPE_CHECKING:
    from conch.simulation.choose import Choice
    from conch.simulation.setup import Options
    from conch_build.model_info import ModelInfo
    from conch_build.plan import Plan

FILE = click.Path(dir_okay=False, path_type=Path)
AT_LEAST_1 = click.IntRange(min=1)
SECONDS = click.FloatRange(min=1)
SHARE = click.FloatRange(0, 1, min_open=True)


@click.command()
@click.argument("plan", type=click.Path(path_type=Path), default="conch.yaml")
@click.option("--gpus", metavar="8,64,1000", help="What so many GPUs take within the SLO; `fewest`: for --rate.")
@click.option("--gpu", help="As `h100`; without it the plan's.")
@click.option("--tensor", type=AT_LEAST_1, help="GPUs that a server spans.  [default: 1, 2, 4 and 8 are tried]")
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), help="Requests a second (Poisson).")
@click.option("--trace", type=FILE, help="Recorded traffic, as of `conch bench`.")
@click.option("--concurrency", type=AT_LEAST_1, help="Requests at once, each followed by the next.")
@click.option("--requests", type=AT_LEAST_1, default=1000, show_default=True, help="Of a run.")
@click.option("--duration", default="30s", show_default=True, help="With --gpus: of the traffic that is tried.")
@click.option("--input-tokens", default="512", show_default=True, metavar="LENGTHS", help="As of `conch bench`.")
@click.option("--output-tokens", default="128", show_default=True, metavar="LENGTHS", help="Likewise.")
@click.option("--shared-prefix", default=0, type=click.IntRange(min=0), help="Tokens that all prompts share.")
@click.option("--slo", metavar="LIMITS", help="ttft=1s,itl=50ms (tpot, e2e); without it the plan's.")
@click.option("--replicas", type=AT_LEAST_1, help="Servers that answer.  [default: the plan's]")
@click.option("--prefill", default=0, type=click.IntRange(min=0), help="Servers beside them that read prompts.")
@click.option("--link-gb-s", default=50.0, show_default=True, type=click.FloatRange(min=0, min_open=True))
@click.option("--local-prefill", default=0, type=click.IntRange(min=0), help="Prompts so long are read where answered.")
@click.option("--scale", metavar="1-8", help="Servers are added and taken away.")
@click.option("--scale-at", default=16.0, show_default=True, type=click.FloatRange(min=0, min_open=True))
@click.option("--start-time", default="60s", show_default=True, help="Of a server that is added.")
@click.option("--mtbf", help="Mean time until a server dies, as 30min.")
@click.option("--restart-time", default="60s", show_default=True, help="Until it is back.")
@click.option("--hourly-usd", type=click.FloatRange(min=0), help="Price of a GPU, or of a CPU server.")
@click.option("--arithmetic", default=0.6, show_default=True, type=SHARE, help="Share of a GPU's FLOP/s reached.")
@click.option("--bandwidth", default=0.6, show_default=True, type=SHARE, help="Share of its bandwidth reached.")
@click.option("--calibrate-seconds", default=10.0, show_default=True, type=SECONDS, help="CPU: time its steps.")
@click.option("--steps", type=FILE, help="CPU: step times that --save-steps wrote.")
@click.option("--save-steps", type=FILE, help="CPU: keep the step times that are measured now.")
@click.option("--counted", is_flag=True, help="CPU: count tokens, run no scheduler: for many servers.")
@click.option("--seed", default=0, show_default=True, help="The same seed gives the same figures.")
@with_console
def simulate(console: Console, gpus: str | None, **given: Any) -> None:
    """Simulate PLAN's servers, gateway and traffic: how many, how split, at what cost, and what breaks first.

    CPU engines run their own scheduler on step times measured here; GPUs are estimated by the roofline.
    """
    from conch.simulation.setup import Options
    from conch_build.size.source import plan_and_model

    names = Options.__dataclass_fields__
    options = Options(**{name: value for name, value in given.items() if name in names})
    plan, info, _ = plan_and_model(str(options.plan), console.note)
    if plan is None:
        raise InputError("is not a plan", where=str(options.plan), fix="`conch init` writes one.")
    if gpus is not None:
        _choose(console, options, plan, info, gpus, given)
    else:
        _run(console, options, plan, info, given)


def _choose(console: Console, options: Options, plan: Plan, info: ModelInfo, gpus: str, given: dict[str, Any]) -> None:
    from conch.simulation.capacity import Question
    from conch.simulation.choose import Machines, choices, fewest
    from conch.simulation.outside import Split
    from conch.simulation.setup import gpu_price, needed_limits, seconds_in, servers_on_gpus, sizes_in

    duration = seconds_in(given["duration"], "--duration")
    question = Question(options.workload, needed_limits(options, plan), seconds=duration)
    sizes = [] if gpus == "fewest" else sizes_in(gpus)
    split = Split(1, given["link_gb_s"] * 1e9, local_tokens=given["local_prefill"])
    servers = servers_on_gpus(options, plan, info)
    machines = Machines(servers, split, gpu_price(options, plan), options.seed)
    if sizes:
        found = choices(machines, question, sizes, console.note)
    elif given["rate"] is None:
        raise InputError("needs a rate", where="--gpus fewest", fix="Give --rate, in requests a second.")
    else:
        best = fewest(machines, question, given["rate"], console.note)
        found = [(best.gpus, [best])]
    rows = [one for _, tried in found for one in tried]
    console.result({"choices": [one.as_dict() for one in rows]}, _choices_text([tried[0] for _, tried in found]))


def _run(console: Console, options: Options, plan: Plan, info: ModelInfo, given: dict[str, Any]) -> None:
    from conch.bench.traffic.trace import load_trace
    from conch.simulation import setup
    from conch.simulation.counted import Policy
    from conch.simulation.figures import figures, weakest
    from conch.simulation.fleet import Fleet, run_closed, run_open
    from conch.simulation.outside import Split

    kinds = [name for name in ("rate", "trace", "concurrency") if given[name] is not None]
    if len(kinds) != 1:
        raise InputError(
            f"{' and '.join(f'--{kind}' for kind in kinds)} exclude each other" if kinds else "there is no traffic",
            fix="Give one of --rate, --trace, --concurrency; or --gpus.",
        )
    limits, workload = setup.limits_in(options, plan), options.workload
    calls = load_trace(given["trace"]) if given["trace"] else []
    on_cpu = plan.engine.backend == "openvino" and options.gpu is None
    if on_cpu:
        hardware, tensor = setup.server_here(options, plan, console.note), 1
        policy = Policy.OPTIMISTIC if given["counted"] else None
        hourly = plan.cost.instance_hourly_usd if options.hourly_usd is None else options.hourly_usd
    else:
        wanted = replace(options, tensor=options.tensor or plan.engine.parallel.tensor)
        tensor, hardware = next(iter(setup.servers_on_gpus(wanted, plan, info).items()))
        policy, hourly = Policy.GUARANTEED, setup.gpu_price(options, plan)
    prefill, link = given["prefill"], given["link_gb_s"] * 1e9
    fleet = Fleet(
        hardware,
        given["replicas"] or plan.serving.replicas,
        policy,
        Split(prefill, link, local_tokens=given["local_prefill"]) if prefill else None,
        setup.scaling_in(given["scale"], given["scale_at"], given["start_time"]),
        setup.failures_in(given["mtbf"], given["restart_time"]),
        plan.serving.gateway.queue.waiting,
        seed=options.seed,
    )
    if given["concurrency"]:
        outcome = run_closed(fleet, workload.jobs([0.0] * given["requests"]), given["concurrency"])
    else:
        jobs = workload.of_trace(calls) if calls else workload.at_rate(given["rate"], given["requests"])
        outcome = run_open(fleet, jobs)
    row = figures(fleet, outcome, limits, setup.price_of(hourly, tensor))
    row["breaks_first"] = weakest(row, outcome, limits) if limits is not None and not row["slo_met"] else None
    console.result(row, _row_text(row))


def _choices_text(found: list[Choice]) -> str:
    heads = ("GPUs", "split", "req/s", "tok/s", "TTFT p95", "ITL p95", "$/h", "$/1M", "gateways", "breaks first")
    rows = [
        (
            f"{one.gpus:,}",
            f"{one.answering} x {one.tensor}" + (f", {one.reading} x {one.tensor} read" if one.reading else ""),
            f"{one.requests_per_second:,.1f}",
            f"{one.tokens_per_second:,.0f}",
            f"{one.ttft_p95_ms:.0f} ms",
            f"{one.itl_p95_ms:.1f} ms",
            "-" if one.usd_per_hour is None else f"{one.usd_per_hour:,.2f}",
            "-" if one.usd_per_million_tokens is None else f"{one.usd_per_million_tokens:.3f}",
            f"{one.gateways:.1f}",
            f"{one.breaks_first} at {one.breaks_at:,.1f}/s",
        )
        for one in found
    ]
    return f"{table(heads, rows)}\nestimated from data sheets and the shares of them that engines reach"


def _row_text(row: dict[str, Any]) -> str:
    def ms(name: str) -> str:
        return "-" if row[name] is None else f"{row[name]:.1f} ms"

    lines = [
        f"{row['answered']:,} of {row['requests']:,} requests in {row['seconds']:.1f} s: "
        f"{row['requests_per_second']:.2f}/s, {row['tokens_per_second']:,.0f} tok/s",
        table(
            ("", "p50", "p95", "p99"),
            [
                (name.upper(), *(ms(f"{name}_{share}_ms") for share in ("p50", "p95", "p99")))
                for name in ("ttft", "itl", "e2e")
            ],
        ),
        f"before the first token: {ms('line_mean_ms')} in the gateway's line, {ms('server_mean_ms')} in the engine's, "
        f"{ms('prompt_mean_ms')} being read",
        f"servers busy {row['busy_share']:.0%}, {row['prompt_share']:.0%} of it with prompts; "
        f"batches {row['batch_share']:.0%} full, KV blocks {row['kv_share']:.0%}; {row['preemptions']} preemptions",
    ]
    if row["most_servers"] != row["servers"] or row["deaths"]:
        lines.append(
            f"at most {row['most_servers']} servers; {row['deaths']} died, {row['began_anew']} requests moved on"
        )
    lines += [f"{count} {kind}" for kind, count in row["errors"].items()]
    if row["usd"] is not None:
        lines.append(f"{row['usd']:.4f} USD, {row['usd_per_million_tokens']:.3f} USD a million tokens")
    if row["good_share"] is not None:
        verdict = "kept" if row["slo_met"] else f"not kept: {row['breaks_first']} breaks first"
        lines.append(f"{row['good_share']:.1%} within the SLO, which is {verdict}")
    return "\n".join(lines)
