"""What can be told of the methods, from what their classes say of themselves."""

from __future__ import annotations

from collections.abc import Iterator

from .build import METHODS
from .method import Method

COLUMNS = ("method", "networks", "averaged", "forward", "backward", "cost", "remembers", "paper")
NUMBERS = 5
"""Columns behind the first that hold numbers."""
NOTE = """\
networks   that are trained
averaged   copies of them that follow; the first is evaluated (method.teacher_decay)
forward    views that go through a network in a step, where supervised has 1,
           with as many unlabelled views as labelled ones
backward   those of them that are learned from
cost       of a step against fixmatch, if a view backward costs two forward;
           docs/performance.md has the measured one
"""


def rows() -> Iterator[tuple[str, ...]]:
    """One for each method, in the order of `COLUMNS`."""
    for name, kind in METHODS.items():
        counts = (kind.networks, kind.averaged, kind.learned + kind.taught, kind.learned)
        paper = "{}: {}, {} {}".format(*kind.paper)
        yield (name, *map(str, counts), f"{cost(kind):.2f}", kind.memory or "-", paper)


def cost(kind: type[Method]) -> float:
    """Of a step against FixMatch's, counted in views: one that is learned from goes forward, and back at twice that.

    >>> round(cost(METHODS["fixmatch"]), 2), round(cost(METHODS["unimatch"]), 2)
    (1.0, 1.86)
    """
    views, base = (3 * one.learned + one.taught for one in (kind, METHODS["fixmatch"]))
    return views / base


def text() -> str:
    """A table, and what its columns are."""
    table = [COLUMNS, *rows()]
    widths = [max(len(row[k]) for row in table) for k in range(len(COLUMNS))]
    lines = []
    for row in table:
        cells = [
            cell.rjust(width) if 1 <= k <= NUMBERS else cell.ljust(width)
            for k, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines) + "\n\n" + NOTE


def markdown() -> str:
    """The table of docs/methods.md."""
    head = [COLUMNS, ("---", *("---:",) * NUMBERS, "---", "---")]
    return "".join(f"| {' | '.join(row)} |\n" for row in (*head, *rows()))
