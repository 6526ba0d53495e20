"""From a plan and the options of `conch simulate` to what is simulated. Raises InputError for what cannot be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from conch.bench.traffic.lengths import parse_lengths
from conch.bench.traffic.slo import Limits, limits_of, parse_limits
from conch.simulation.gpu_steps import Efficiency, gpu_hardware
from conch.simulation.outside import Failures, Scaling
from conch.simulation.replica import Hardware
from conch.simulation.steps import Measured
from conch.simulation.workload import Workload
from conch_build.cost import Price
from conch_build.errors import InputError
from conch_build.gpu.cards import Gpu, find_gpu, gpu_of
from conch_build.model_info import ModelInfo
from conch_build.plan import Plan
from conch_build.units import parse_seconds

TENSOR_SIZES = (1, 2, 4, 8)
Say = Callable[[str], None]


@dataclass(frozen=True)
class Options:
    """As they were given."""

    plan: Path
    gpu: str | None = None
    tensor: int | None = None
    input_tokens: str = "512"
    output_tokens: str = "128"
    shared_prefix: int = 0
    slo: str | None = None
    hourly_usd: float | None = None
    arithmetic: float = 0.6
    bandwidth: float = 0.6
    steps: Path | None = None
    save_steps: Path | None = None
    calibrate_seconds: float = 10.0
    seed: int = 0

    @property
    def workload(self) -> Workload:
        return Workload(
            parse_lengths(self.input_tokens, "--input-tokens"),
            parse_lengths(self.output_tokens, "--output-tokens", least=2),
            self.shared_prefix,
            self.seed,
        )


def limits_in(options: Options, plan: Plan) -> Limits | None:
    """`--slo`, else the plan's."""
    return limits_of(plan.slo) if options.slo is None else parse_limits(options.slo)


def needed_limits(options: Options, plan: Plan) -> Limits:
    limits = limits_in(options, plan)
    if limits is None:
        fix = "Give --slo ttft=1s,itl=50ms, or the plan an `slo`."
        raise InputError("says not what must be kept, so that any number would do", where=str(options.plan), fix=fix)
    return limits


def servers_on_gpus(options: Options, plan: Plan, info: ModelInfo) -> dict[int, Hardware]:
    """GPUs of a server -> the server, for every number that holds the model."""
    gpu = _gpu(options, plan)
    efficiency = Efficiency(options.arithmetic, options.bandwidth)
    if plan.engine.backend == "openvino":
        plan = plan.model_copy(update={"engine": plan.engine.model_copy(update={"backend": "pytorch"})})
    sizes = TENSOR_SIZES if options.tensor is None else (options.tensor,)
    found = {
        tensor: hardware
        for tensor in sizes
        if info.num_attention_heads % tensor == 0
        and (hardware := gpu_hardware(plan, info, gpu, tensor, efficiency)) is not None
    }
    if not found:
        many = " or ".join(map(str, sizes))
        fix = "Quantize it, shorten engine.max_seq_len, or take a larger GPU."
        raise InputError(f"does not fit on {many} x {gpu.label}", where=str(options.plan), fix=fix)
    _check_lengths(options, next(iter(found.values())))
    return found


def server_here(options: Options, plan: Plan, say: Say) -> Hardware:
    """The plan's CPU engine, built if need be, with step times from a file or measured now."""
    from conch.simulation.calibrate import Bench
    from conch_build.pipeline import build
    from conch_build.store import Store

    built = build(plan, Store(), say=say)
    times = Measured.load(options.steps) if options.steps is not None else None
    bench = Bench.load(built.engine.path)
    try:
        if times is None:
            say(f"timing the engine's steps for {options.calibrate_seconds:g} s")
            longest = min(max(options.workload.longest, 64), bench.config.max_seq_len) - 49
            times = bench.calibrate(options.calibrate_seconds, max(longest, 16), min(bench.config.batch_size, 32))
        if options.save_steps is not None:
            times.save(options.save_steps)
        hardware = bench.hardware(times)
    finally:
        bench.close()
    _check_lengths(options, hardware)
    return hardware


def gpu_price(options: Options, plan: Plan) -> float | None:
    """Of one GPU an hour. The plan's price is that of the machine that its own engines fill."""
    if options.hourly_usd is not None or plan.cost.instance_hourly_usd is None:
        return options.hourly_usd
    parallel = plan.engine.parallel
    return plan.cost.instance_hourly_usd / (parallel.tensor * parallel.pipeline * plan.serving.replicas)


def price_of(hourly_usd: float | None, gpus: int) -> Price | None:
    return None if hourly_usd is None else Price(hourly_usd, gpus)


def scaling_in(text: str | None, target: float, start: str) -> Scaling | None:
    """`1-8`: from one to eight servers."""
    if text is None:
        return None
    least, dash, most = text.partition("-")
    if not (dash and least.isdigit() and most.isdigit() and 1 <= int(least) <= int(most)):
        raise InputError(f"{text!r} is no range of servers", where="--scale", fix="Write it as 1-8.")
    return Scaling(int(least), int(most), target, seconds_in(start, "--start-time"))


def failures_in(between: str | None, restart: str) -> Failures | None:
    if between is None:
        return None
    mean = seconds_in(between, "--mtbf")
    if not mean > 0:
        raise InputError("a server that fails all the time serves nobody", where="--mtbf", fix="Give it more than 0.")
    return Failures(mean, seconds_in(restart, "--restart-time"))


def seconds_in(text: str, where: str) -> float:
    try:
        return parse_seconds(text)
    except ValueError as error:
        raise InputError(str(error), where=where) from None


def sizes_in(text: str) -> list[int]:
    """`8,64,1000`."""
    parts = text.split(",")
    if not all(part.strip().isdigit() and 1 <= int(part) <= 100_000 for part in parts):
        raise InputError(f"{text!r} is no list of numbers of GPUs", where="--gpus", fix="Write it as 8,64,1000.")
    return [int(part) for part in parts]


def _gpu(options: Options, plan: Plan) -> Gpu:
    if options.gpu is None and plan.target.gpu is None:
        raise InputError("names no GPU", where=str(options.plan), fix="Give --gpu h100, or the plan a `target.gpu`.")
    return gpu_of(plan) if options.gpu is None else find_gpu(options.gpu)


def _check_lengths(options: Options, hardware: Hardware) -> None:
    longest, most = options.workload.longest, hardware.config.max_seq_len
    held = hardware.num_blocks * hardware.tokens_per_block
    if longest > min(most, held):
        what = f"requests of up to {longest:,} tokens do not fit"
        where = f"engine.max_seq_len is {most:,}, the KV cache holds {held:,} tokens"
        raise InputError(what, where=where, fix="Shorten --input-tokens or --output-tokens, or change the plan.")
