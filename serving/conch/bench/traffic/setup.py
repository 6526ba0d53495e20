"""From what a person asked for to a trial: which server, which prompts, which loads, held against what."""

from __future__ import annotations

import asyncio
import json
import os
import urllib.error
import urllib.request
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from conch.bench.traffic.lengths import Lengths, parse_lengths
from conch.bench.traffic.measures import Terms
from conch.bench.traffic.openai import CHAT, COMPLETIONS, OpenAITarget
from conch.bench.traffic.prompts import Decoded, Ids, Mix, Stories, Words, Writer
from conch.bench.traffic.slo import limits_of, parse_limits
from conch.bench.traffic.trace import load_trace
from conch.bench.traffic.trial import Load, Trial, calibrated
from conch.bench.traffic.triton import TritonTarget
from conch.remote import gateway_url, grpc_url
from conch_build.cost import Price
from conch_build.errors import InputError, UnavailableError
from conch_build.units import parse_seconds

GRPC = "grpc://"


@dataclass(frozen=True)
class Options:
    """The options of `conch bench`, as they were given."""

    model: tuple[str, ...] = ()
    endpoint: str | None = None
    api_key_env: str | None = None
    tokenizer: Path | None = None
    engine: Path | None = None
    concurrency: str | None = None
    rate: str | None = None
    trace: Path | None = None
    speed: float = 1.0
    ramp: str | None = None
    requests: int | None = None
    duration: str | None = None
    rounds: int = 2
    input_tokens: str | None = None
    output_tokens: str = "128"
    shared_prefix: int = 0
    turns: int = 1
    think: str = "0s"
    cancel: float = 0.0
    seed: int = 0
    slo: str | None = None
    plan: Path | None = None
    hourly_usd: float | None = None
    instances: int = 1
    timeout: str = "600s"

    @property
    def output(self) -> Lengths:
        return parse_lengths(self.output_tokens, "--output-tokens", least=2)

    @property
    def seconds(self) -> float | None:
        return None if self.duration is None else seconds(self.duration, "--duration")


def seconds(text: str, where: str) -> float:
    try:
        return parse_seconds(text)
    except ValueError as error:
        raise InputError(str(error), where=where) from None


def loads_of(options: Options) -> list[Load]:
    """One of each level; none for a ramp, which finds its own. Raises InputError for several kinds at once."""
    kinds = [name for name in ("concurrency", "rate", "trace", "ramp") if getattr(options, name) is not None]
    if len(kinds) > 1:
        raise InputError(f"{' and '.join(f'--{kind}' for kind in kinds)} exclude each other", fix="Give one of them.")
    if options.duration is not None and options.requests is not None:
        raise InputError("--requests and --duration exclude each other", fix="Give one of them.")
    common = {"requests": options.requests, "duration": options.seconds}
    if options.ramp is not None:
        return []
    if options.trace is not None:
        calls = load_trace(options.trace)
        return [Load(calls=[replace(call, time=call.time / options.speed) for call in calls])]
    if options.rate is not None:
        return [Load(rate=rate, **common) for rate in _rates(options.rate)]  # type: ignore[arg-type]
    levels = counts(options.concurrency or "1,8")
    return [Load(concurrency=level, **common) for level in levels]  # type: ignore[arg-type]


def counts(text: str) -> list[int]:
    """`1,8,32` as numbers. Raises InputError for anything else."""
    try:
        levels = [int(part) for part in text.split(",")]
    except ValueError:
        levels = []
    if not levels or min(levels) < 1:
        raise InputError(f"{text!r} is not a list of counts", where="--concurrency", fix="Write it as 1,8,32.")
    return levels


def _rates(text: str) -> list[float]:
    try:
        rates = [float(part) for part in text.split(",")]
    except ValueError:
        rates = []
    if not rates or not all(0 < rate < 1e6 for rate in rates):
        raise InputError(f"{text!r} is not a list of requests/s", where="--rate", fix="Write it as 0.5,1,2.")
    return rates


def terms_of(options: Options) -> Terms:
    """What `--slo` and the price say, else the plan."""
    limits, hourly = None, options.hourly_usd
    if options.plan is not None:
        from conch_build.plan import load_plan

        plan = load_plan(options.plan)
        limits = limits_of(plan.slo)
        hourly = plan.cost.instance_hourly_usd if hourly is None else hourly
    if options.slo is not None:
        limits = parse_limits(options.slo)
    return Terms(limits, None if hourly is None else Price(hourly, options.instances))


async def trial_of(url: str, options: Options) -> Trial:
    """Connect, and prepare what will be asked. Raises InputError or UnavailableError."""
    terms, key = terms_of(options), _key(options.api_key_env)
    target: OpenAITarget | TritonTarget
    if url.startswith(GRPC):
        target, endpoint = await _triton(url.removeprefix(GRPC), options), None
        names = options.model or ("",)
        metrics = None
    else:
        url = gateway_url(url).removesuffix("/v1")
        names = options.model or (await asyncio.to_thread(only_model, url, key),)
        ids = _tokenizer(options) is not None
        endpoint = options.endpoint or (COMPLETIONS if ids and options.turns == 1 else CHAT)
        target, metrics = OpenAITarget(url, endpoint, key), f"{url}/metrics"
    models = _weighted(names)
    if isinstance(target, TritonTarget):
        await target.use(list(models))
    default = "1" if options.input_tokens is None else options.input_tokens
    mix = Mix(
        models,
        parse_lengths(default, "--input-tokens"),
        options.output,
        options.shared_prefix,
        options.turns,
        options.cancel,
        options.seed,
    )
    writer = _writer(options, endpoint)
    if isinstance(writer, Words):
        writer = await calibrated(target, next(iter(models)), writer)
    return Trial(
        target,
        mix,
        writer,
        terms,
        seconds(options.timeout, "--timeout"),
        seconds(options.think, "--think"),
        metrics,
        metered=urlsplit(url if "//" in url else f"//{url}").hostname in ("127.0.0.1", "localhost", "::1"),
    )


async def _triton(address: str, options: Options) -> TritonTarget:
    if options.endpoint is not None:
        raise InputError("Triton has no such endpoint", where="--endpoint", fix="Leave it out.")
    if _tokenizer(options) is None or (options.input_tokens is None and options.trace is None):
        raise InputError(
            "a Triton is asked in token ids",
            where=f"{GRPC}{address}",
            fix="Give --input-tokens, and --tokenizer or --engine.",
        )
    target = TritonTarget(grpc_url(address))
    await target.open()
    return target


def _writer(options: Options, endpoint: str | None) -> Writer:
    lengths_matter = options.input_tokens is not None or options.shared_prefix or options.trace is not None
    if not lengths_matter:
        return Stories()
    from conch_build.calibration import builtin_texts

    file = _tokenizer(options)
    if file is None:
        return Words(builtin_texts())
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(file))

    def encode(text: str) -> list[int]:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    ids = Ids(builtin_texts(), encode)
    return Decoded(ids, tokenizer.decode) if endpoint == CHAT else ids


def _tokenizer(options: Options) -> Path | None:
    """The `tokenizer.json` that was named, or that of the engine. Raises InputError where there is none."""
    if options.tokenizer is not None:
        file = options.tokenizer
        where = "--tokenizer"
    elif options.engine is not None:
        file, where = options.engine / "tokenizer", "--engine"
    else:
        return None
    file = file / "tokenizer.json" if file.is_dir() else file
    if not file.is_file():
        raise InputError(f"no {file}", where=where, fix="Name a folder that holds a tokenizer.json.")
    return file


def _weighted(names: tuple[str, ...]) -> dict[str, float]:
    models: dict[str, float] = {}
    for name in names:
        model, equals, weight = name.rpartition("=")
        try:
            models[model if equals else name] = value = float(weight) if equals else 1.0
        except ValueError:
            value = -1.0
        if not 0 < value < float("inf"):
            raise InputError(f"{name!r} has no weight above 0", where="--model", fix="Write it as NAME=2.")
    return models


def _key(name: str | None) -> str | None:
    if name is None:
        return None
    key = os.environ.get(name)
    if not key:
        raise InputError(f"the environment holds no {name}", where="--api-key-env", fix=f"export {name}=...")
    return key


def only_model(url: str, key: str | None = None) -> str:
    """The one model that a server has. Raises UnavailableError, or InputError where it has several."""
    request = urllib.request.Request(f"{url}/v1/models", headers={"Authorization": f"Bearer {key}"} if key else {})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            names: list[Any] = [model["id"] for model in json.load(answer)["data"]]
    except urllib.error.HTTPError as error:
        raise UnavailableError(
            f"does not tell its models: HTTP status {error.code}", where=url, fix="Give --model, or --api-key-env."
        ) from None
    except (urllib.error.URLError, OSError, ValueError, KeyError, TypeError):
        raise UnavailableError(
            "no gateway answers there", where=url, fix="`conch serve` starts one; --url names another."
        ) from None
    if len(names) != 1:
        raise InputError(f"serves {len(names)} models: {', '.join(names)}", where=url, fix="Choose one with --model.")
    return str(names[0])
