"""`conch eval`: what a build lost in quality, beside the unquantized model, in process or by URL."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from conch_build.console import Console, table, with_console

if TYPE_CHECKING:
    from conch_build.quality import Figures

_NAMES = {
    "perplexity": "perplexity",
    "perplexity_ratio": "  over the baseline's",
    "agreement": "next-token agreement",
    "kl": "KL from the baseline, nats",
    "exact_match": "exact match",
    "bleu": "BLEU",
    "rouge_l": "ROUGE-L",
    "similarity": "similarity of meaning",
    "valid": "valid by schema",
}
_WIDEST = 160


@click.command("eval")
@click.argument("plan", type=click.Path(path_type=Path), required=False)
@click.option("--url", help="Judge this server instead of PLAN's build: a gateway, or any server with /v1.")
@click.option("--model", help="Of that server. Default: the only one.")
@click.option("--baseline-url", help="Compare with this server. Default: PLAN's unquantized build.")
@click.option("--baseline-model", help="Of that server. Default: the only one.")
@click.option("--api-key", envvar="CONCH_API_KEY", help="For both servers. Default: $CONCH_API_KEY.")
@click.option("--text", type=click.Path(), help="A .txt or .jsonl file in place of the plan's `quality.text`.")
@click.option("--tasks", type=click.Path(), help="A .jsonl file in place of the plan's `quality.tasks`.")
@click.option("--samples", type=click.IntRange(min=1), help="Texts to read.")
@click.option("--max-length", type=click.IntRange(min=2), help="Tokens of each text.")
@click.option("--no-text", is_flag=True, help="With --url: judge answers alone, which any server gives.")
@click.option("--show", default=3, show_default=True, type=click.IntRange(min=0), help="Answers side by side.")
@click.option("--force", is_flag=True, help="Measure again what is in the store.")
@click.option("--verbose", is_flag=True, help="Show what the libraries print instead of logging it.")
@with_console
def evaluate(
    console: Console,
    plan: Path | None,
    url: str | None,
    model: str | None,
    baseline_url: str | None,
    baseline_model: str | None,
    api_key: str | None,
    no_text: bool,
    show: int,
    force: bool,
    verbose: bool,
    **asked: Any,
) -> None:
    """Measure the build of PLAN (conch.yaml) beside the unquantized model, or the server at --url.

    Perplexity, next-token agreement and KL on text; exact match, BLEU, ROUGE-L, similarity and validity on tasks.
    By URL, KL is a lower bound, from the 20 likeliest tokens. A limit of the plan's `quality` that is broken gives
    exit code 3.
    """
    from conch.evaluation.run import Server, of_plan, of_server
    from conch.remote import gateway_url
    from conch_build.errors import InputError, QualityError
    from conch_build.plan import load_plan
    from conch_build.plan_quality import Quality

    given = {key: value for key, value in asked.items() if value is not None}
    if url is None:
        if baseline_url or no_text or model:
            raise InputError("--model, --baseline-url and --no-text go with --url")
        plan = plan or Path("conch.yaml")
    loaded = load_plan(plan) if plan else None
    quality = (loaded.quality if loaded else Quality()).model_copy(update=given)
    if url is not None:
        server = Server(gateway_url(url), model, api_key)
        baseline = Server(gateway_url(baseline_url), baseline_model, api_key) if baseline_url else None
        figures = of_server(server, baseline, loaded, quality, with_text=not no_text, say=console.note)
    else:
        assert loaded is not None
        judged = loaded.model_copy(update={"quality": quality})
        figures = of_plan(judged, force=force, verbose=verbose, say=console.note)
    broken = figures.broken(quality.limits)
    console.result(
        {
            "plan": str(plan) if plan else None,
            "url": url,
            "figures": figures.model_dump(mode="json"),
            "limits": quality.limits,
            "broken": broken,
        },
        "\n\n".join([_rows(figures, quality.limits), *_samples(figures, show)]),
    )
    if broken:
        console.note("not held: " + "; ".join(broken))
        click.get_current_context().exit(QualityError.exit_code)


def _rows(figures: Figures, limits: dict[str, float]) -> str:
    """A line a figure: the build's, the baseline's, what the plan asks for and whether it holds."""
    rows = []
    for name, label in _NAMES.items():
        value = figures.value(f"{name}_max")
        if value is None:
            continue
        limit = next((key for key in limits if key.rpartition("_")[0] == name), None)
        asked = f"{'<=' if limit.endswith('max') else '>='} {limits[limit]:g}" if limit else ""
        holds = "" if limit is None else "no" if figures.broken({limit: limits[limit]}) else "yes"
        if holds == "yes" and name == "kl" and not (figures.text and figures.text.kl_exact):
            holds = "maybe"  # the true one may be larger
        rows.append((label, f"{value:.4g}", _beside(figures, name), asked, holds))
    return table(("", "BUILD", "BASELINE", "LIMIT", "HELD"), rows)


def _beside(figures: Figures, name: str) -> str:
    """The baseline's figure, or what is known of the build's beside it."""
    text, tasks = figures.text, figures.baseline_tasks
    if text is not None and name == "perplexity" and text.baseline_perplexity is not None:
        return f"{text.baseline_perplexity:.4g}"
    if text is not None and name == "perplexity_ratio" and text.perplexity_ratio_interval is not None:
        return "95 %: {:.4f} to {:.4f}".format(*text.perplexity_ratio_interval)
    if text is not None and name == "kl" and not text.kl_exact:
        return f"at least; {text.kl_unseen:.1%} unseen"
    value = getattr(tasks, name, None)
    return "" if value is None else f"{value:.4g}"


def _samples(figures: Figures, show: int) -> list[str]:
    parts = []
    for sample in figures.samples[:show]:
        lines = [("asked", sample.question), ("build", sample.answer)]
        if sample.baseline is not None:
            same = sample.baseline == sample.answer
            lines.append(("baseline", "the same" if same else sample.baseline))
        parts.append("\n".join(f"{who:<9} {_line(text)}" for who, text in lines))
    return parts


def _line(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= _WIDEST else flat[: _WIDEST - 3] + "..."
