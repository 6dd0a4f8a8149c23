"""Line charts and reliability diagrams as SVG text: small, sharp in print, readable without colours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 420, 250
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 12, 34
LOOKS = 8
"""Colours, dashes and marks before they begin again; the colours stand in page.css."""
DASHES = ("", "7 4", "2 3", "9 3 2 3", "12 4", "4 2", "1 4", "6 2 1 2 1 2")
MARKS = 10
"""Marks on a line, at most."""


@dataclass(frozen=True)
class Line:
    name: str
    points: Sequence[tuple[float, float]]
    look: int = 0
    """Which colour, dash and mark."""


@dataclass(frozen=True)
class Axis:
    low: float
    high: float
    ticks: tuple[float, ...]

    def place(self, value: float, start: float, end: float) -> float:
        return start + (value - self.low) / (self.high - self.low) * (end - start)


def chart(title: str, lines: Sequence[Line], unit: str = "", low: float | None = None, ident: str = "chart") -> str:
    """Lines over steps. `low` is where the upright axis begins, where that is known."""
    shown = [line for line in lines if line.points]
    xs = [x for line in shown for x, _ in line.points]
    ys = [y for line in shown for _, y in line.points]
    across = axis(min(0, *xs), max(xs)) if xs else axis(0, 1)
    up = axis(min(ys) if low is None else min(low, *ys), max(ys)) if ys else axis(0, 1)
    told = "; ".join(
        f"{line.name}: {_said(line.points[0][1])} first, {_said(line.points[-1][1])} last" for line in shown
    )
    parts = [*_opened(title, f"{title} over steps. {told}", ident), *_grid(across, up, "step", unit)]
    for line in shown:
        parts += _drawn(line, across, up)
    return "\n".join([*parts, "</svg>"])


def reliability_chart(title: str, lines: Sequence[Line], told: str, ident: str) -> str:
    """What was said (across) against what was right (up); on the diagonal they are the same."""
    unit = axis(0, 1)
    parts = [*_opened(title, told, ident), *_grid(unit, unit, "said", "right", percent=True)]
    x0, y0, x1, y1 = _corners()
    parts.append(f'<line class="diagonal" x1="{x0}" y1="{y1}" x2="{x1}" y2="{y0}"/>')
    for line in lines:
        parts += _drawn(line, unit, unit)
    return "\n".join([*parts, "</svg>"])


def legend_mark(look: int) -> str:
    """A short piece of a line, for a legend; the name stands beside it."""
    inner = f'<line class="line" x1="2" y1="8" x2="38" y2="8"{_dash(look)}/>{_mark(look, 20, 8)}'
    size = 'viewBox="0 0 40 16" width="40" height="16"'
    return f'<svg class="key look{look % LOOKS}" {size} aria-hidden="true">{inner}</svg>'


def axis(low: float, high: float, about: int = 5) -> Axis:
    """Round ticks from below `low` to above `high`.

    >>> axis(0, 0.83).ticks
    (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    >>> axis(3, 3).ticks
    (3.0, 3.2, 3.4, 3.6, 3.8, 4.0)
    """
    if not high > low:
        high = low + 1
    rough = (high - low) / about
    scale = 10 ** math.floor(math.log10(rough))
    step = next(scale * factor for factor in (1, 2, 2.5, 5, 10) if scale * factor >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = tuple(round(step * i, 12) for i in range(first, last + 1))
    return Axis(ticks[0], ticks[-1], ticks)


def thinned(points: Sequence[tuple[float, float]], most: int = 300) -> list[tuple[float, float]]:
    """Long runs have more points than a chart has pixels: means of neighbours, the ends kept."""
    if len(points) <= most:
        return list(points)
    inner = points[1:-1]
    count = most - 2
    out = [points[0]]
    for i in range(count):
        part = inner[i * len(inner) // count : (i + 1) * len(inner) // count]
        out.append((sum(x for x, _ in part) / len(part), sum(y for _, y in part) / len(part)))
    return [*out, points[-1]]


def _corners() -> tuple[float, float, float, float]:
    return LEFT, TOP, WIDTH - RIGHT, HEIGHT - BOTTOM


def _opened(title: str, told: str, ident: str) -> list[str]:
    return [
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-labelledby="{ident}-t {ident}-d">',
        f'<title id="{ident}-t">{escape(title)}</title>',
        f'<desc id="{ident}-d">{escape(told)}</desc>',
    ]


def _grid(across: Axis, up: Axis, below: str, beside: str, percent: bool = False) -> list[str]:
    x0, y0, x1, y1 = _corners()
    parts = []
    for tick in up.ticks:
        y = up.place(tick, y1, y0)
        parts.append(f'<line class="grid" x1="{x0}" y1="{y:.1f}" x2="{x1}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{x0 - 6}" y="{y + 4:.1f}" text-anchor="end">{_number(tick, percent)}</text>')
    for tick in across.ticks:
        x = across.place(tick, x0, x1)
        parts.append(f'<line class="tick" x1="{x:.1f}" y1="{y1}" x2="{x:.1f}" y2="{y1 + 4}"/>')
        anchor = "end" if tick == across.ticks[-1] else "middle"
        parts.append(f'<text x="{x:.1f}" y="{y1 + 16}" text-anchor="{anchor}">{_number(tick, percent)}</text>')
    parts.append(f'<line class="axis" x1="{x0}" y1="{y1}" x2="{x1}" y2="{y1}"/>')
    parts.append(f'<text x="{(x0 + x1) / 2}" y="{HEIGHT - 4}" text-anchor="middle">{escape(below)}</text>')
    middle = (y0 + y1) / 2
    parts.append(
        f'<text x="12" y="{middle}" text-anchor="middle" transform="rotate(-90 12 {middle})">{escape(beside)}</text>'
    )
    return parts


def _drawn(line: Line, across: Axis, up: Axis) -> list[str]:
    x0, y0, x1, y1 = _corners()
    places = [(across.place(x, x0, x1), up.place(y, y1, y0)) for x, y in line.points]
    way = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    every = max(1, -(-len(places) // MARKS))
    marks = "".join(_mark(line.look, x, y) for x, y in [*places[::every], places[-1]])
    polyline = f'<polyline class="line" points="{way}"{_dash(line.look)}/>' if len(places) > 1 else ""
    return [f'<g class="look{line.look % LOOKS}">{polyline}{marks}<title>{escape(line.name)}</title></g>']


def _dash(look: int) -> str:
    dash = DASHES[look % LOOKS]
    return f' stroke-dasharray="{dash}"' if dash else ""


def _mark(look: int, x: float, y: float) -> str:
    kind, r = look % LOOKS, 3.4
    if kind % 4 == 0:
        return f'<circle class="mark" cx="{x:.1f}" cy="{y:.1f}" r="{r}"/>'
    corners = {
        1: ((-r, -r), (r, -r), (r, r), (-r, r)),
        2: ((0, -r * 1.2), (r * 1.1, r), (-r * 1.1, r)),
        3: ((0, -r * 1.3), (r * 1.3, 0), (0, r * 1.3), (-r * 1.3, 0)),
    }[kind % 4]
    way = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in corners)
    return f'<polygon class="mark" points="{way}"/>'


def _number(value: float, percent: bool = False) -> str:
    return f"{100 * value:g} %" if percent else f"{value:g}"


def _said(value: float) -> str:
    return f"{value:.3g}"
