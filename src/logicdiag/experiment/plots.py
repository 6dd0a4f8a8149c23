"""Plots of an experiment, as PNG files. Needs matplotlib (`pip install "logicdiag[plots]"`)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from ..files import written_whole
from .config import Experiment
from .rows import Row
from .table import Group, Mean, ResultTable

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D31")
"""Okabe and Ito's, which colour-blind people tell apart; markers differ as well. Yellow is too pale on white."""
TURN = 3
"""How much farther the markers go on in each round of colours; odd, so that eight rounds differ."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
WIDTH, DPI = 10.0, 120
"""Inches, and pixels per inch."""
STYLE = {
    "font.size": 13,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "lines.linewidth": 2,
    "lines.markersize": 7,
    "legend.frameon": False,
}
LEGEND = 170.0
"""Points that the names of one column of a legend have together."""
PANELS = {
    "right pseudo labels (%)": ("after", "before"),
    "right among those that count (%)": ("learned",),
    "pixels in conflict (%)": ("conflict",),
    "right among those in conflict (%)": ("conflict_after", "conflict_before"),
    "counted pixels (%)": ("counted",),
}
"""What is drawn solid and what is drawn dashed."""


def draw(folder: Path, name: str, e: Experiment, table: ResultTable, measured: Sequence[Row]) -> list[Path]:
    """mIoU against labels (or by row, where labels do not vary), and pseudo labels over training."""
    plt = _matplotlib()
    written = []
    with plt.rc_context(STYLE):
        if not table.is_empty:
            path, points = folder / f"{name}.png", _points(table)
            several = len({count for _, count in points}) > 1
            figure = (_against_labels if several else _by_row)(plt, e, table, points)
            written.append(_save(plt, figure, path))
        for labels in sorted({row["labels"] for row in measured}, key=_order):
            path = folder / f"{name}-pseudo{f'-{labels}' if labels else ''}.png"
            chosen = [row for row in measured if row["labels"] == labels]
            written.append(_save(plt, _pseudo(plt, e, table.groups, chosen, labels), path))
    return written


def _matplotlib() -> Any:
    try:
        import matplotlib
    except ImportError:
        raise ConfigError('plots need matplotlib; install it with: pip install "logicdiag[plots]"') from None
    matplotlib.use("Agg")
    import matplotlib.pyplot

    return matplotlib.pyplot


def _save(plt: Any, figure: Any, path: Path) -> Path:
    with written_whole([path]) as [part]:
        figure.savefig(part, format="png", dpi=DPI)
    plt.close(figure)
    return path


def _order(labels: str) -> float:
    return float(labels) if labels else 0.0


def _look(index: int) -> dict[str, Any]:
    """Of a row: 64 differ. Every other round of colours has hollow markers. Dashes are taken: they are before psi.

    >>> _look(0)["marker"], _look(8)["marker"], _look(8)["markerfacecolor"]
    ('o', 'D', 'white')
    """
    colour, turn = COLOURS[index % len(COLOURS)], index // len(COLOURS)
    marker = MARKERS[(index + turn * TURN) % len(MARKERS)]
    return {"color": colour, "marker": marker, "markerfacecolor": "white" if turn % 2 else colour}


# ---- mIoU ------------------------------------------------------------------------------------------------------------

Points = set[tuple[str, int | None]]
"""Names of rows, and numbers of labels."""


def _points(table: ResultTable) -> Points:
    """Where all runs are done, since the eye compares a mean of one with a mean of three; where none are, what is."""
    means = {(g.name, n): table.means[g.name, n, "last"] for g in table.groups for n in table.labels}
    whole = {point for point, mean in means.items() if mean.n == mean.planned and mean.n}
    return whole or {point for point, mean in means.items() if mean.n}


def _against_labels(plt: Any, e: Experiment, table: ResultTable, points: Points) -> Any:
    figure, axes = plt.subplots(figsize=(WIDTH, 6.2), layout="constrained")
    counts = [count for count in table.labels if count is not None]
    shown = [g for g in table.groups if any((g.name, count) in points for count in counts)]
    for index, group in enumerate(table.groups):
        if group not in shown:
            continue
        means = [(n, table.means[group.name, n, "last"]) for n in counts if (group.name, n) in points]
        aside = 1.012 ** (shown.index(group) - (len(shown) - 1) / 2)  # so that error bars do not hide each other
        axes.errorbar(
            [count * aside for count, _ in means],
            [mean.mean for _, mean in means],
            list(zip(*(_reach(mean) for _, mean in means), strict=True)),
            label=group.name,
            capsize=3,
            **_look(index),
        )
    axes.set_xscale("log")
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.set_xticks([], minor=True)
    axes.set(xlabel="labelled images", ylabel=f"mIoU on {_reported(e, table)} (%), last checkpoint")
    figure.suptitle(_title(e), fontsize=14)
    figure.legend(loc="outside lower center", ncols=2 if len(shown) > 3 else max(1, len(shown)), fontsize=11)
    return figure


def _by_row(plt: Any, e: Experiment, table: ResultTable, points: Points) -> Any:
    count = next(n for n in table.labels if any(there == n for _, there in points))
    shown = [g for g in table.groups if (g.name, count) in points]
    figure, axes = plt.subplots(figsize=(WIDTH, 2.2 + 0.45 * len(shown)), layout="constrained")
    for index, which in enumerate(("last", "best")):
        means = [table.means[group.name, count, which] for group in shown]
        axes.errorbar(
            [mean.mean for mean in means],
            [place + (index - 0.5) * 0.24 for place in range(len(shown))],
            xerr=list(zip(*(_reach(mean) for mean in means), strict=True)),
            linestyle="none",
            label=f"{which} checkpoint",
            capsize=3,
            **_look(index),
        )
    axes.set_yticks(range(len(shown)), [group.name for group in shown])
    axes.invert_yaxis()
    labels = "" if count is None else f", {count} labels"
    axes.set_xlabel(f"mIoU on {_reported(e, table)} (%)")
    figure.suptitle(f"{_title(e)}{labels}", fontsize=14)  # of the axes it would be cut where names of rows are long
    figure.legend(loc="outside lower center", ncols=2, fontsize=11)
    return figure


def _reach(mean: Mean) -> tuple[float, float]:
    """How far the error bar goes down and up."""
    deviation = 0.0 if math.isnan(mean.deviation) else mean.deviation
    return mean.mean - _share(mean.mean - deviation), _share(mean.mean + deviation) - mean.mean


def _title(e: Experiment) -> str:
    return f"{e.title} ({e.dataset})"


def _reported(e: Experiment, table: ResultTable) -> str:
    return str(e.evaluate or table.groups[0].cells[0].config.data.val)


# ---- pseudo labels ---------------------------------------------------------------------------------------------------


def _pseudo(plt: Any, e: Experiment, groups: Sequence[Group], rows: Sequence[Row], labels: str) -> Any:
    """One line for each row of the table, in panels that have some; the legend has what is left of the last line of
    panels, or a line of its own, as high as it needs.
    """
    panels = {title: keys for title, keys in PANELS.items() if any(row.get(key) for row in rows for key in keys)}
    lines = len(panels) // 2 + 1
    heights = [1.0] * lines
    if len(panels) % 2 == 0:
        heights[-1] = min(1.0, 0.1 * (1 + (len(groups) + 1) // 2))
    figure = plt.figure(figsize=(WIDTH, 3.67 * sum(heights)), layout="constrained")
    grid = figure.add_gridspec(lines, 2, height_ratios=heights)
    named: dict[str, Any] = {}
    for place, (title, (after, *before)) in enumerate(panels.items()):
        axes = figure.add_subplot(grid[place // 2, place % 2])
        for index, group in enumerate(groups):
            mine = [row for row in rows if row["cell"] in _names(group)]
            _line(axes, mine, after, label=group.name, **_look(index))
            for key in before:
                _line(axes, mine, key, linestyle="--", alpha=0.7, **_look(index))
        axes.set_ylim(*map(_share, axes.get_ylim()))
        axes.set_xlabel("step")
        axes.set_ylabel(title, fontsize=11)
        handles, names = axes.get_legend_handles_labels()
        named |= dict(zip(names, handles, strict=True))
    legend = figure.add_subplot(grid[-1, len(panels) % 2 :])
    legend.axis("off")
    shown = [group.name for group in groups if group.name in named]
    columns = 1 if len(panels) % 2 else 2
    size = min(12.0, LEGEND * columns / max(1, len(shown)))
    legend.legend([named[name] for name in shown], shown, loc="center", ncols=columns, fontsize=size, labelspacing=0.35)
    count = f", {labels} labels" if labels else ""
    what = "solid: after psi; dashed: before, the likeliest leaf"
    figure.suptitle(f"Pseudo labels: {_title(e)}{count}\n{what}", fontsize=13)
    return figure


def _names(group: Group) -> set[str]:
    return {cell.name for cell in group.cells}


def _line(axes: Any, rows: Sequence[Row], key: str, **look: Any) -> None:
    """The mean over runs at each step, with a band of one standard deviation."""
    values: dict[int, list[float]] = {}
    for row in rows:
        if row.get(key):
            values.setdefault(int(row["step"]), []).append(float(row[key]))
    steps = sorted(values)
    if not steps:
        return
    means = [statistics.fmean(values[step]) for step in steps]
    spread = [statistics.stdev(values[step]) if len(values[step]) > 1 else 0.0 for step in steps]
    axes.plot(steps, means, clip_on=False, **look)  # a marker at 0 or 100 is whole
    low, high = ([_share(m + sign * s) for m, s in zip(means, spread, strict=True)] for sign in (-1, 1))
    axes.fill_between(steps, low, high, color=look["color"], alpha=0.12, linewidth=0)


def _share(value: float) -> float:
    """A deviation may reach beyond what a share can be."""
    return min(max(value, 0.0), 100.0)
