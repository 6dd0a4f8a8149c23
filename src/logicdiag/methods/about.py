"""What can be told of the methods, from what their classes say of themselves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .build import METHODS
from .method import Method

NUMBERS = ("networks", "averaged", "forward", "back", "cost")
COLUMNS = ("method", "year", "unlabelled", "weights", *NUMBERS, "paper", "remembers")
NOTE = """\
unlabelled  whether it needs unlabelled images
weights     what model.weights may hold, if anything: any, or those of an encoder and not of a whole network,
            for networks that teach each other must start apart
networks    that are trained
averaged    copies of them that follow, of which the first is evaluated; where 0 will do, method.teacher_decay=0
forward     views that go through a network in a step, where supervised has 1, with as many unlabelled views as
            labelled ones; of st++ the mean over its stages, of which the first has no unlabelled views
back        those of them that are learned from
cost        of a step against fixmatch, if a view costs twice as much back as forward;
            docs/performance.md has the measured one
"""


def rows() -> Iterator[tuple[str, ...]]:
    """One for each method, in the order of `COLUMNS`."""
    for name, kind in METHODS.items():
        title, authors, venue, year = kind.paper
        needs = ("yes" if kind.needs_unlabeled else "no", "any" if kind.networks == 1 else "encoder")
        optional = kind.averaged and not kind.needs_average
        averaged = f"0 or {kind.averaged}" if optional else f"{kind.averaged}"
        counts = (f"{kind.networks}", averaged, *(f"{count:g}" for count in views(kind)), f"{cost(kind):.2f}")
        yield (name, f"{year}", *needs, *counts, f"{title}: {authors}, {venue}", kind.memory or "-")


def views(kind: type[Method]) -> tuple[float, float]:
    """Of a step, forward and back: the mean over the steps of a run, some of which may have labelled views alone.

    >>> views(METHODS["fixmatch"]), views(METHODS["st++"])  # 0.3 of its steps have one view, 0.7 those of fixmatch
    ((3.0, 2.0), (2.4, 1.7))
    """
    alone = kind.labels_alone
    back = alone * kind.networks + (1 - alone) * kind.learned
    return round(back + (1 - alone) * kind.taught, 6), round(back, 6)


def cost(kind: type[Method]) -> float:
    """Of a step against FixMatch's, counted in views: one that is learned from goes forward, and back at twice that.

    >>> [round(cost(METHODS[name]), 2) for name in ("fixmatch", "unimatch", "st++")]
    [1.0, 1.86, 0.83]
    """
    ours, base = (forward + 2 * back for forward, back in (views(kind), views(METHODS["fixmatch"])))
    return ours / base


def text() -> str:
    """A table, what is remembered, and what the columns are."""
    *shown, _ = range(len(COLUMNS))  # what is remembered would make lines too long
    table = [COLUMNS, *rows()]
    widths = [max(len(row[k]) for row in table) for k in shown]
    lines = ["  ".join(_cell(row, k, widths) for k in shown).rstrip() for row in table]
    kept = "".join(f"{name} remembers {memory}\n" for name, *_, memory in rows() if memory != "-")
    return "\n".join(lines) + f"\n\n{kept}\n{NOTE}"


def _cell(row: Sequence[str], column: int, widths: Sequence[int]) -> str:
    width = widths[column]
    return row[column].rjust(width) if COLUMNS[column] in NUMBERS else row[column].ljust(width)


def markdown() -> str:
    """The table of docs/methods.md."""
    head = [COLUMNS, tuple("---:" if column in NUMBERS else "---" for column in COLUMNS)]
    return "".join(f"| {' | '.join(row)} |\n" for row in (*head, *rows()))
