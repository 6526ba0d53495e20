"""What a match found, as rows of a table. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from conch.bench.contests import Cell, Contest, Verdict, judge, judge_repeat
from conch.bench.match import Match
from conch.bench.roofline import share_of_roofline, step_bytes
from conch.bench.workloads import Workload
from conch_build.console import table
from conch_build.units import format_bytes, format_seconds

_COLUMNS = ("at once", "tok/s", "ratio", "of medians", "wanted", "", "TTFT p50", "ITL p50", "gap p99", "of roofline")


def sides_text(match: Match) -> str:
    """How each side was set up, what it took to start and to hold."""
    rows = [
        (
            name,
            format_seconds(entrant.start_seconds),
            format_bytes(entrant.resident_bytes),
            format_bytes(entrant.facts.weight_bytes),
            entrant.facts.tuned,
        )
        for name, entrant in match.entrants.items()
    ]
    failures = [f"{name} is left out: {reason}" for name, reason in match.failures.items()]
    return "\n".join([table(("side", "ready in", "resident", "weights", "set up"), rows), *failures])


def contest_text(
    contest: Contest, match: Match, workloads: Sequence[Workload], bandwidth: float, *, judged: bool = True
) -> str:
    """A table for each workload, ours and the peer side by side. `bandwidth` in bytes/s."""
    parts = []
    for workload in workloads:
        rows = list(_rows(contest, match, workload, bandwidth, judged))
        if rows:
            columns = ("", "tok/s", "TTFT cold", "repeated", "ratio", "of medians", "wanted", "")
            headers = columns if workload.repeats else _COLUMNS
            parts.append(f"{contest.ours} against {contest.peer}: {workload.title}\n{table(headers, rows)}")
    return "\n\n".join(parts)


def verdicts(contest: Contest, match: Match, workloads: Sequence[Workload]) -> list[dict[str, Any]]:
    """The same as data: a ratio for each workload and concurrency at which both were measured."""
    return [
        {
            "ours": contest.ours,
            "peer": contest.peer,
            "workload": workload.name,
            "concurrency": level,
            **asdict(judge_repeat(*ours) if workload.repeats else judge(contest, level, ours[0], peer[0])),
        }
        for workload in workloads
        for level, ours, peer in _met(contest, match, workload)
    ]


def _met(contest: Contest, match: Match, workload: Workload) -> Iterator[tuple[int, list[Cell], list[Cell]]]:
    """Where both were measured: concurrency, our cells, the peer's."""
    for side, name, level in match.cells:
        if (side, name) == (contest.peer, workload.name) and (contest.ours, name, level) in match.cells:
            yield level, match.cells[contest.ours, name, level], match.cells[side, name, level]


def _rows(
    contest: Contest, match: Match, workload: Workload, bandwidth: float, judged: bool
) -> Iterator[Sequence[object]]:
    for level, ours, peer in _met(contest, match, workload):
        if workload.repeats:
            yield from (_repeat_row(contest, name, cells, judged) for name, cells in _named(contest, ours, peer))
        else:
            shares = [
                _share(match, side, workload, level, cells[0], bandwidth) for side, cells in _named(contest, ours, peer)
            ]
            yield _row(level, ours[0], peer[0], judge(contest, level, ours[0], peer[0]), shares, judged)


def _named(contest: Contest, ours: list[Cell], peer: list[Cell]) -> list[tuple[str, list[Cell]]]:
    return [(contest.ours, ours), (contest.peer, peer)]


def _row(level: int, ours: Cell, peer: Cell, verdict: Verdict, shares: Sequence[float], judged: bool) -> list[object]:
    return [
        level,
        f"{ours.best:.0f} : {peer.best:.0f}",
        *_verdict(verdict, judged),
        f"{ours.ttft_p50_ms:.0f} : {peer.ttft_p50_ms:.0f} ms",
        f"{ours.itl_p50_ms:.1f} : {peer.itl_p50_ms:.1f} ms",
        f"{ours.gap_p99_ms:.0f} : {peer.gap_p99_ms:.0f} ms",
        " : ".join(f"{share:.0%}" for share in shares),
    ]


def _repeat_row(contest: Contest, name: str, cells: list[Cell], judged: bool) -> list[object]:
    cold, again = cells
    verdict = judge_repeat(cold, again)
    if name == contest.peer:
        verdict = Verdict(verdict.best_ratio, verdict.median_ratio, None, None)
    return [
        name,
        f"{cold.best:.0f}",
        f"{cold.ttft_p50_ms:.0f} ms",
        f"{again.ttft_p50_ms:.1f} ms",
        *_verdict(verdict, judged),
    ]


def _verdict(verdict: Verdict, judged: bool) -> list[str]:
    wanted = f"{verdict.least:.1f}" if judged and verdict.least is not None else ""
    return [f"{verdict.best_ratio:.2f}", f"{verdict.median_ratio:.2f}", wanted, verdict.word if judged else ""]


def _share(match: Match, side: str, workload: Workload, level: int, cell: Cell, bandwidth: float) -> float:
    """Of memory's speed that a decode step of this side used."""
    facts = match.entrants[side].facts
    read = step_bytes(facts.weight_bytes, facts.kv_bytes_per_token, level, workload.mean_context)
    return share_of_roofline(read, cell.itl_p50_ms / 1e3, bandwidth)
