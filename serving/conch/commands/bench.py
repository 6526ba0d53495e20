"""`conch bench`: load on a running server, and its figures; `conch bench compare`: two of them, and a verdict."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from conch_build.console import Console, table, with_console
from conch_build.errors import InputError

FILE = click.Path(dir_okay=False, path_type=Path)
AT_LEAST_1 = click.IntRange(min=1)


def load_options(function: Callable[..., None]) -> Callable[..., None]:
    """What is asked, how often, and what it is held against."""
    for option in reversed(
        (
            click.option(
                "--model", multiple=True, metavar="NAME[=WEIGHT]", help="Several: a mix, as of LoRA adapters."
            ),
            click.option("--endpoint", type=click.Choice(["chat", "completions"]), help="Default: what fits."),
            click.option("--api-key-env", metavar="NAME", help="Environment variable that holds the API key."),
            click.option("--tokenizer", type=click.Path(path_type=Path), help="Exact lengths: a tokenizer.json."),
            click.option("--engine", type=click.Path(path_type=Path), help="Its tokenizer, and share of the roofline."),
            click.option("--concurrency", help="Requests at once, a row for each.  [default: 1,8]"),
            click.option("--rate", help="Requests a second (Poisson), a row for each."),
            click.option("--trace", type=FILE, help="Recorded traffic: JSONL of time, input_tokens, output_tokens."),
            click.option("--speed", default=1.0, type=click.FloatRange(min=0, min_open=True), help="Of the trace."),
            click.option("--requests", type=AT_LEAST_1, help="Of a round.  [default: as many as at once; 10 s' worth]"),
            click.option("--duration", help="Of a round, as in 30s, in place of --requests."),
            click.option(
                "--input-tokens", metavar="LENGTHS", help="128, uniform:64-256, normal:128,32, lognormal:128,.5"
            ),
            click.option(
                "--output-tokens", "--max-tokens", metavar="LENGTHS", default="128", show_default=True, help="Likewise."
            ),
            click.option(
                "--shared-prefix", default=0, type=click.IntRange(min=0), help="Tokens that all prompts share."
            ),
            click.option("--turns", default=1, type=AT_LEAST_1, help="Of a session; each holds what was said before."),
            click.option("--think", default="0s", help="Time between turns."),
            click.option("--cancel", default=0.0, type=click.FloatRange(0, 1), help="Share that the client leaves."),
            click.option("--seed", default=0, help="Of lengths, prompts, arrivals."),
            click.option("--slo", metavar="LIMITS", help="ttft=100ms,itl=50ms (tpot, e2e): what counts as good."),
            click.option("--plan", type=FILE, help="Its SLO and its price."),
            click.option("--hourly-usd", type=click.FloatRange(min=0), help="Price of an instance."),
            click.option("--instances", default=1, type=AT_LEAST_1, help="That serve together."),
            click.option("--timeout", default="600s", help="Of a request."),
        )
    ):
        function = option(function)
    return function


@click.group(invoke_without_command=True)
@click.option("--url", default="http://127.0.0.1:8080", show_default=True, help="OpenAI's API, or grpc://HOST:PORT.")
@load_options
@click.option("--ramp", type=click.Choice(["concurrency", "rate"]), help="Raise it until nothing more comes.")
@click.option("--rounds", default=2, show_default=True, type=AT_LEAST_1, help="Of each load; all of them count.")
@click.option("--overhead", is_flag=True, help="Also measure the load generator, on a server of known timing.")
@click.option("--save", type=FILE, help="JSON with every request.")
@click.option("--csv", "csv_file", type=FILE, help="A row a load.")
@click.option("--html", type=FILE, help="A report of one file.")
@with_console
def bench(
    console: Console,
    url: str,
    overhead: bool,
    save: Path | None,
    csv_file: Path | None,
    html: Path | None,
    **given: Any,
) -> None:
    """Put load on a server and print tokens/s, time to first token, inter-token latency, and more."""
    if click.get_current_context().invoked_subcommand is not None:
        return
    from conch.bench.traffic.decoding import EngineBytes, roofline_share
    from conch.bench.traffic.overhead import measure_overhead
    from conch.bench.traffic.runs import Run, in_loop, run
    from conch.bench.traffic.saved import csv_text, run_dict
    from conch.bench.traffic.setup import Options, loads_of, trial_of
    from conch.bench.traffic.trial import Trial

    options = Options(**given)
    loads_of(options)  # wrong input is told before anything is sent
    engine = EngineBytes.of(options.engine) if options.engine else None

    async def measure() -> tuple[Trial, Run, list[dict[str, Any]], list[dict[str, Any]]]:
        trial = await trial_of(url, options)
        try:
            found = await run(trial, options)
        finally:
            await trial.target.close()
        rows = found.rows(trial)
        added = []
        for load, row in zip(found.loads.values(), rows, strict=True) if overhead else ():
            if load.concurrency is not None and row["tpot_p50_ms"]:
                shape = (row["ttft_p50_ms"] / 1e3, row["tpot_p50_ms"] / 1e3)
                added.append(await measure_overhead(load, shape, options.output))
        return trial, found, rows, added

    trial, found, rows, added = in_loop(measure())
    if engine is not None:
        bandwidth = engine.bandwidth()
        for row, rounds in zip(rows, found.rounds.values(), strict=True):
            row["roofline_share"] = roofline_share(rounds, engine, bandwidth)
    model = ", ".join(trial.mix.models)
    about = {"url": url, "model": model, "max_tokens": _number(options.output_tokens), **_told(given)}
    result = {**about, "rows": rows, "saturation": found.saturation, "overhead": added}
    if save:
        save.write_text(json.dumps(run_dict({**about, "overhead": added}, rows, found.detail(trial))) + "\n")
    if csv_file:
        csv_file.write_text(csv_text(rows))
    if html:
        from conch.bench.traffic.page import page

        html.write_text(page(f"{model or 'model'} at {url}", {**_told(given)}, rows, found.rounds), encoding="utf-8")
    console.result(result, "\n".join(_text(rows, found.saturation, added)))


@bench.command()
@click.argument("files", nargs=-1, type=FILE)
@click.option("--url-a", help="Measure these two now, in turns, in place of FILES.")
@click.option("--url-b")
@load_options
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(min=2), help="Of each side, in turns.")
@click.option(
    "--within", default=2.0, show_default=True, type=click.FloatRange(0, 50), help="Percent that is no difference."
)
@click.option(
    "--confidence", default=95.0, show_default=True, type=click.FloatRange(50, 99.9), help="Of the intervals, %."
)
@click.option(
    "--metric", "judged", multiple=True, default=("tokens_per_second",), show_default=True, help="That decides."
)
@with_console
def compare(
    console: Console,
    files: tuple[Path, ...],
    url_a: str | None,
    url_b: str | None,
    within: float,
    confidence: float,
    judged: tuple[str, ...],
    **given: Any,
) -> None:
    """B against A, out of FILES (A B, or A B A B ...) that `conch bench --save` wrote, or of two running servers.

    Exit codes: 0 faster or no difference, 10 slower, 11 unclear: more rounds would tell.
    """
    from conch.bench.traffic.compare import EXIT_CODES, METRICS, worst
    from conch.bench.traffic.compare import compare as compared

    if unknown := [name for name in judged if name not in METRICS]:
        raise InputError(f"no metric {unknown[0]!r}", where="--metric", fix=f"Metrics: {', '.join(METRICS)}.")
    live = url_a is not None and url_b is not None
    if live == bool(files) or (not live and (url_a or url_b)):
        raise InputError("needs either FILES or both --url-a and --url-b", fix="As in: A.json B.json.")
    pairs = _live_pairs(url_a or "", url_b or "", given) if live else _saved_pairs(files)
    found = compared(pairs, within / 100, confidence / 100)
    deciding = [one.verdict for one in found if one.metric in judged]
    if not deciding:
        raise InputError(f"neither side tells {', '.join(judged)}", where="--metric")
    verdict = worst(deciding)
    rows = [
        (
            one.load,
            one.metric,
            f"{one.a:.4g}",
            f"{one.b:.4g}",
            f"{one.ratio.ratio:.3f}",
            "" if one.ratio.low is None else f"{one.ratio.low:.3f} to {one.ratio.high:.3f}",
            one.verdict,
        )
        for one in found
    ]
    text = table(("load", "metric", "A", "B", "B/A", f"{confidence:g}% interval", ""), rows)
    ending = f"B is {verdict}" if verdict in ("faster", "slower") else verdict
    ending = f"no difference within {within:g} %" if verdict == "no difference" else ending
    console.result(
        {"verdict": verdict, "pairs": len(pairs), "judged": judged, "compared": [one.as_dict() for one in found]},
        f"{text}\n\n{ending} ({', '.join(judged)}; {len(pairs)} pairs of rounds)",
    )
    raise SystemExit(EXIT_CODES[verdict])


def _saved_pairs(files: tuple[Path, ...]) -> list[tuple[Any, Any]]:
    from conch.bench.traffic.saved import read_rounds

    if len(files) % 2:
        raise InputError(f"{len(files)} files are no pairs", fix="Give them in turns: A B, or A B A B.")
    pairs = []
    for a, b in zip(files[::2], files[1::2], strict=True):
        one, other = read_rounds(a), read_rounds(b)
        if len(one) != len(other):
            raise InputError(
                f"{a} holds {len(one)} rounds and {b} {len(other)}", fix="Measure both with the same --rounds."
            )
        pairs += list(zip(one, other, strict=True))
    return pairs


def _live_pairs(url_a: str, url_b: str, given: dict[str, Any]) -> list[tuple[Any, Any]]:
    from conch.bench.traffic.runs import Run, in_loop, in_turns
    from conch.bench.traffic.setup import Options, trial_of

    options = Options(**given)

    async def measure() -> list[list[dict[str, Any]]]:
        trials = [await trial_of(url, options) for url in (url_a, url_b)]
        sides = [(trial, Run()) for trial in trials]
        try:
            await in_turns(sides, options)
        finally:
            for trial in trials:
                await trial.target.close()
        return [found.detail(trial) for trial, found in sides]

    by_side = []
    for detail in in_loop(measure()):
        rounds: list[dict[str, Any]] = [{} for _ in range(options.rounds)]
        for one in detail:
            rounds[one["round"]][one["figures"]["load"]] = one["figures"]
        by_side.append(rounds)
    return list(zip(*by_side, strict=True))


def _number(text: str) -> int | str:
    return int(text) if text.isdigit() else text


def _told(given: dict[str, Any]) -> dict[str, Any]:
    """The options that were given, as a run tells them."""
    return {
        name: str(value) if isinstance(value, Path) else value
        for name, value in given.items()
        if value and name != "model"
    }


def _text(rows: list[dict[str, Any]], saturation: dict[str, float] | None, added: list[dict[str, Any]]) -> list[str]:
    by_count = all(row["concurrency"] is not None for row in rows)

    def cell(row: dict[str, Any], name: str, form: str) -> str:
        return "-" if row.get(name) is None else form.format(row[name])

    columns = [
        ("concurrency" if by_count else "load", "concurrency" if by_count else "load", "{}"),
        ("tok/s", "tokens_per_second", "{:.0f}"),
        *((f"TTFT {share}", f"ttft_{share}_ms", "{:.1f} ms") for share in ("p50", "p95")),
        *((f"ITL {share}", f"itl_{share}_ms", "{:.1f} ms") for share in ("p50", "p95")),
        ("E2E p95", "e2e_p95_ms", "{:.0f} ms"),
        ("req/s", "requests_per_second", "{:.2f}"),
        ("good", "good_share", "{:.0%}"),
        ("hits", "prefix_hit_share", "{:.0%}"),
        ("accepted", "draft_acceptance", "{:.0%}"),
        ("J/tok", "joules_per_token", "{:.3f}"),
        ("$/1M", "usd_per_million_tokens", "{:.3f}"),
        ("roofline", "roofline_share", "{:.0%}"),
    ]
    shown = [column for column in columns if any(row.get(column[1]) is not None for row in rows)]
    lines = [table([name for name, _, _ in shown], [[cell(row, key, form) for _, key, form in shown] for row in rows])]
    lines += [f"{row['load']}: {count} {kind}" for row in rows for kind, count in row["errors"].items()]
    if saturation:
        lines.append("saturated at " + ", ".join(f"{value:g} {name}" for name, value in saturation.items()))
    for one in added:
        lines.append(
            f"the load generator at {one['load']}: at most +{one['ttft_added_p50_ms']:.2f} ms to TTFT, "
            f"{one['tpot_added_p50_ms']:+.3f} ms to a token, {one['generator_cpu_share']:.1%} of a core"
        )
    return lines
