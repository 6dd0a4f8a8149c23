"""What can be told of the methods, from what their classes say of themselves."""

from __future__ import annotations

from collections.abc import Iterator

from .build import METHODS

COLUMNS = ("method", "networks", "averaged", "forward", "backward", "remembers", "paper")
NOTE = """\
networks   that are trained
averaged   copies of them that follow; the first is evaluated (method.teacher_decay)
forward    views that go through a network in a step, where supervised has 1,
           with as many unlabelled views as labelled ones
backward   those of them that are learned from
"""


def rows() -> Iterator[tuple[str, ...]]:
    """One for each method, in the order of `COLUMNS`."""
    for name, kind in METHODS.items():
        counts = (kind.networks, kind.averaged, kind.learned + kind.taught, kind.learned)
        paper = "{}: {}, {} {}".format(*kind.paper)
        yield (name, *map(str, counts), kind.memory or "-", paper)


def text() -> str:
    """A table, and what its columns are."""
    table = [COLUMNS, *rows()]
    widths = [max(len(row[k]) for row in table) for k in range(len(COLUMNS))]
    lines = []
    for row in table:
        cells = [
            cell.rjust(width) if 1 <= k <= 4 else cell.ljust(width)
            for k, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines) + "\n\n" + NOTE


def markdown() -> str:
    """The table of docs/methods.md."""
    head = [COLUMNS, ("---", *("---:",) * 4, "---", "---")]
    return "".join(f"| {' | '.join(row)} |\n" for row in (*head, *rows()))
