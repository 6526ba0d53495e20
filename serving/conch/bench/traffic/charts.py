"""Charts as inline SVG: lines over an axis that is linear or logarithmic, bars, cumulated shares. Pure; no scripts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT = 560, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 12, 34, 46
_BAR, _BAR_LEFT, _BAR_RIGHT = 22, 190, 60
_COLOURS = ("#2f6fde", "#d9822b", "#2e9e6b", "#b5479d", "#7a6ff0", "#c23b3b", "#5b7083", "#a08a00")

Points = Sequence[tuple[float, float]]


def line_chart(title: str, x_name: str, y_name: str, lines: Mapping[str, Points], *, log_x: bool = False) -> str:
    """A `<svg>` with a line for each name; names are told in a legend. Empty text without points."""
    lines = {name: [(x, y) for x, y in points if x > 0 or not log_x] for name, points in lines.items()}
    every = [point for points in lines.values() for point in points]
    if not every:
        return ""
    horizontal = _Axis([x for x, _ in every], _LEFT, WIDTH - _RIGHT, log_x)
    vertical = _Axis([0.0, *(y for _, y in every)], HEIGHT - _BOTTOM, _TOP, False)
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}" '
        'xmlns="http://www.w3.org/2000/svg">',
        f'<text class="title" x="{_LEFT}" y="16">{escape(title)}</text>',
        f'<text x="{WIDTH - _RIGHT}" y="{HEIGHT - 8}" text-anchor="end">{escape(x_name)}</text>',
        f'<text x="{WIDTH - _RIGHT}" y="16" text-anchor="end">{escape(y_name)}</text>',
    ]
    for value in vertical.ticks():
        y = vertical.place(value)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_short(value)}</text>')
    for value in horizontal.ticks():
        x = horizontal.place(value)
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{HEIGHT - _BOTTOM}"/>')
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - _BOTTOM + 16}" text-anchor="middle">{_short(value)}</text>')
    for number, (name, points) in enumerate(lines.items()):
        parts += _line(name, points, _COLOURS[number % len(_COLOURS)], horizontal, vertical)
        parts += _legend(name, number)
    return "".join([*parts, "</svg>"])


def bar_chart(title: str, unit: str, bars: Mapping[str, float]) -> str:
    """A `<svg>` with a lying bar for each name, its value beside it. Empty text without bars."""
    if not bars:
        return ""
    longest = max(*bars.values(), 0.0) or 1.0
    height = _TOP + _BAR * len(bars) + 8
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}" '
        'xmlns="http://www.w3.org/2000/svg">',
        f'<text class="title" x="8" y="16">{escape(title)}</text>',
        f'<text x="{WIDTH - _RIGHT}" y="16" text-anchor="end">{escape(unit)}</text>',
    ]
    for number, (name, value) in enumerate(bars.items()):
        y = _TOP + _BAR * number
        width = value / longest * (WIDTH - _BAR_LEFT - _BAR_RIGHT)
        parts += [
            f'<text x="{_BAR_LEFT - 6}" y="{y + 14}" text-anchor="end">{escape(name)}</text>',
            f'<rect x="{_BAR_LEFT}" y="{y + 3}" width="{width:.1f}" height="{_BAR - 6}" fill="{_COLOURS[0]}"/>',
            f'<text x="{_BAR_LEFT + width + 5:.1f}" y="{y + 14}">{_short(value)}</text>',
        ]
    return "".join([*parts, "</svg>"])


def cumulated(values: Sequence[float], most: int = 200) -> list[tuple[float, float]]:
    """(value, percent of all that are not above it), at most so many points."""
    ordered = sorted(values)
    step = max(len(ordered) // most, 1)
    chosen = sorted({*range(0, len(ordered), step), len(ordered) - 1}) if ordered else []
    return [(ordered[n], 100 * (n + 1) / len(ordered)) for n in chosen]


class _Axis:
    def __init__(self, values: Sequence[float], start: float, end: float, log: bool) -> None:
        self.low, self.high, self.log = min(values), max(values), log
        if self.high <= self.low:
            self.low, self.high = (self.low / 2, self.low * 2) if log else (self.low - 0.5, self.low + 0.5)
        self._start, self._end = start, end

    def place(self, value: float) -> float:
        low, high, value = (math.log(v) if self.log else v for v in (self.low, self.high, value))
        return self._start + (value - low) / (high - low) * (self._end - self._start)

    def ticks(self) -> list[float]:
        """Round values inside, about five; of a logarithmic axis 1, 2 and 5 of each decade."""
        if self.log:
            decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            values = [digit * 10.0**decade for decade in decades for digit in (1, 2, 5)]
        else:
            rough = (self.high - self.low) / 5
            unit = 10.0 ** math.floor(math.log10(rough))
            step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough * 0.999)
            values = [n * step for n in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)]
        return [value for value in values if self.low <= value <= self.high]


def _line(name: str, points: Points, colour: str, x: _Axis, y: _Axis) -> list[str]:
    placed = [(x.place(a), y.place(b)) for a, b in points]
    path = " ".join(f"{a:.1f},{b:.1f}" for a, b in placed)
    parts = [f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>']
    if len(points) <= 20:
        for (a, b), (left, top) in zip(points, placed, strict=True):
            told = escape(f"{name}: {_short(b)} at {_short(a)}")
            parts.append(
                f'<circle cx="{left:.1f}" cy="{top:.1f}" r="3.5" fill="{colour}"><title>{told}</title></circle>'
            )
    return parts


def _legend(name: str, number: int) -> list[str]:
    x, y = _LEFT + 4 + number % 4 * 120, HEIGHT - 8 - number // 4 * 14
    colour = _COLOURS[number % len(_COLOURS)]
    return [
        f'<rect x="{x}" y="{y - 9}" width="10" height="10" fill="{colour}"/>',
        f'<text x="{x + 14}" y="{y}">{escape(name)}</text>',
    ]


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
