"""Tables with data sets side by side, in short figures; made of CSV files alone, so that no run needs to be here."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ..errors import ConfigError, hint
from .config import Experiment
from .grid import Cell, expand
from .rows import Row, read
from .show import duration
from .table import (
    IDENTITY,
    SAME,
    Group,
    Mean,
    counts_of,
    grouped,
    markdown,
    of_runs,
    paired,
    reference_of,
    reported,
)

NONE = "–"
"""In place of a figure that no run gives."""
MEASURED = {
    "before": "likeliest leaf right",
    "after": "repaired label right",
    "conflict": "in conflict",
    "conflict_before": "of those: likeliest leaf right",
    "conflict_after": "repaired label right",
    "repaired": "wrong, then right",
    "broken": "right, then wrong",
}
"""Columns of `pseudo`."""
OF_CLASS = ("conflict", "conflict_before", "conflict_after", "repaired", "broken")
"""Columns of `classes`."""
TITLES = tuple(MEASURED[name] for name in OF_CLASS)
NO_RUN = "No run is done yet."
NOT_MEASURED = "Nothing was measured yet."
Spoiled = Mapping[str, Sequence[str]]
"""Data set -> rows whose figures stand in brackets."""
Column = tuple[str, dict[str, str]]
"""A heading, and texts by the row's name."""


@dataclass(frozen=True)
class Side:
    """A table on one data set; CSV files are read when they are first asked for."""

    e: Experiment
    title: str
    """What the data set is called."""
    groups: dict[str, Group]
    labels: list[int | None]
    reference: Group | None

    @cached_property
    def known(self) -> dict[str, Row]:
        ours = {cell.key for cell in self.every}
        return {key: row for key, row in reported(self.e).items() if key in ours}

    @cached_property
    def measured(self) -> list[Row]:
        rows = read(self.e.results_folder / f"{self.e.table}-pseudo.csv", (*IDENTITY, "step"))
        return [row for row in rows if row["dataset"] == self.e.dataset]

    @cached_property
    def by_class(self) -> list[Row]:
        """Of the last snapshots."""
        rows = read(self.e.results_folder / f"{self.e.table}-pseudo-classes.csv", (*IDENTITY, "class"))
        return [row for row in rows if row["dataset"] == self.e.dataset]

    @property
    def chose(self) -> bool:
        """Whether the best checkpoint was chosen on another list than the reported one."""
        return any(row["chosen_on"] not in ("", SAME) for row in self.known.values())

    def heading(self, count: int | None) -> str:
        return self.title if count is None else f"{self.title}, {count} labels"

    @property
    def every(self) -> list[Cell]:
        return [cell for group in self.groups.values() for cell in group.cells]

    def cells(self, count: int | None) -> list[Cell]:
        return [cell for group in self.groups.values() for cell in group.of(count)]

    def counts(self) -> tuple[str, str]:
        """Of cells: all, and those that are done."""
        return str(len(self.every)), str(sum(cell.key in self.known for cell in self.every))

    def is_begun(self, count: int | None) -> bool:
        return any(cell.key in self.known for cell in self.cells(count))

    def mean(self, group: Group, count: int | None, column: str) -> Mean:
        return of_runs(self.known, group.of(count), column)


Place = tuple[Side, "int | None"]
"""A data set, and how many labels."""


def side_of(e: Experiment, title: str) -> Side:
    cells = expand(e)
    groups = grouped(cells, e.pool)
    return Side(e, title, {group.name: group for group in groups}, counts_of(cells), reference_of(e, groups))


def figure(value: Mean, signed: bool = False) -> str:
    """With the number of runs where it is not all of them.

    >>> from logicdiag.experiment.table import mean
    >>> figure(mean([40.0, 42.0], 2)), figure(mean([40.0, 42.0], 3), signed=True), figure(mean([-1.0], 3), signed=True)
    ('41.0 ± 1.4', '+41.0 ± 1.4 (2)', '-1.0 (1)')
    >>> figure(mean([], 3))
    '–'
    """
    if not value.n:
        return NONE
    sign = "+" if signed and value.mean >= 0 else ""
    spread = "" if math.isnan(value.deviation) else f" ± {value.deviation:.1f}"
    return f"{sign}{value.mean:.1f}{spread}{f' ({value.n})' * (value.n < value.planned)}"


# ---- results ---------------------------------------------------------------------------------------------------------


def results(sides: Sequence[Side], spoiled: Spoiled, pairs: Sequence[tuple[str, str]]) -> list[str]:
    """A table for each number of labels that has a run, the fewest of all data sets first; then pairs of rows."""
    lines = []
    for block in _blocks(sides):
        columns = [column for side, count in block for column in _columns(side, count, spoiled)]
        names = dict.fromkeys(name for side, _ in block for name in side.groups)
        body = [[name, *(texts.get(name, NONE) for _, texts in columns)] for name in names]
        lines += markdown(["", *(head for head, _ in columns)], body)
    if lines and pairs:
        lines += _pairs(sides, spoiled, pairs)
    return lines or [NO_RUN]


def _blocks(sides: Sequence[Side]) -> Iterator[list[Place]]:
    """Numbers of labels that stand side by side, by their order, where there is any run."""
    for beside in itertools.zip_longest(*([(side, count) for count in side.labels] for side in sides)):
        block = [place for place in beside if place is not None]
        if any(side.is_begun(count) for side, count in block):
            yield block


def _columns(side: Side, count: int | None, spoiled: Spoiled) -> list[Column]:
    """Headings, and texts by the row's name; nothing is compared with a row that is spoiled."""
    groups, reference, bad = side.groups.values(), side.reference, spoiled.get(side.e.dataset, ())
    found = [(side.heading(count), {group.name: figure(side.mean(group, count, "miou_last")) for group in groups})]
    if side.chose:
        found.append(("best", {group.name: figure(side.mean(group, count, "miou_best")) for group in groups}))
    if reference is not None and reference.name not in bad:
        less = {group.name: _less(side, group, reference, count) for group in groups if group is not reference}
        found.append((f"less {reference.name}", {**less, reference.name: ""}))
    return [(head, {name: _marked(text, name in bad) for name, text in texts.items()}) for head, texts in found]


def _pairs(sides: Sequence[Side], spoiled: Spoiled, pairs: Sequence[tuple[str, str]]) -> list[str]:
    """The first of each pair less the second, wherever there are runs."""
    places = [(side, count) for side in sides for count in side.labels if side.is_begun(count)]
    body = []
    for first, second in pairs:
        texts = []
        for side, count in places:
            there = first in side.groups and second in side.groups
            text = _less(side, side.groups[first], side.groups[second], count) if there else NONE
            texts.append(_marked(text, not {first, second}.isdisjoint(spoiled.get(side.e.dataset, ()))))
        body.append([f"{first} less {second}", *texts])
    return markdown(["", *(side.heading(count) for side, count in places)], body)


def _less(side: Side, group: Group, other: Group, count: int | None) -> str:
    return figure(paired(group.of(count), other.of(count), side.known), signed=True)


def _marked(text: str, is_spoiled: bool) -> str:
    return f"[{text}]" if is_spoiled and text not in ("", NONE) else text


# ---- other figures of the same runs ----------------------------------------------------------------------------------


def figures(
    sides: Sequence[Side], columns: Mapping[str, str], rows: Sequence[str], pairs: Sequence[tuple[str, str]]
) -> list[str]:
    """Columns of the CSV files by what they are called; rows and columns without any figure are left out. Then pairs of
    rows: the first less the second, of runs with the same seed.
    """
    lines = []
    for block in _blocks(sides):
        found: list[Column] = []
        for side, count in block:
            for column, title in columns.items():
                of = {name: group.of(count) for name, group in side.groups.items()}
                means = {name: of_runs(side.known, cells, column) for name, cells in of.items() if name in rows}
                texts = {name: figure(value) for name, value in means.items() if value.n}
                for one, two in pairs:
                    if one in of and two in of:
                        less = paired(of[one], of[two], side.known, column)
                        texts |= {f"{one} less {two}": figure(less, signed=True)} if less.n else {}
                found += [(f"{side.heading(count)}: {title}", texts)] if texts else []
        names = [*rows, *(f"{one} less {two}" for one, two in pairs)]
        body = [[name, *(texts.get(name, NONE) for _, texts in found)] for name in names]
        if found:
            lines += markdown(["", *(head for head, _ in found)], [line for line in body if {*line[1:]} - {NONE}])
    return lines or ["No run has these figures yet."]


# ---- pseudo labels ---------------------------------------------------------------------------------------------------


def pseudo(sides: Sequence[Side], row: str, steps: Sequence[int]) -> list[str]:
    """How good the pseudo labels of a row were, at these steps, or at all that were measured."""
    body = []
    for side in sides:
        for count in side.labels:
            keys = {cell.key for cell in side.groups[row].of(count)} if row in side.groups else set()
            ours = [found for found in side.measured if found["key"] in keys]
            heading = side.heading(count)
            for step in sorted({int(found["step"]) for found in ours}):
                if not steps or step in steps:
                    at = [found for found in ours if int(found["step"]) == step]
                    few = f" ({len(at)})" * (len(at) < len(keys))
                    body.append([heading, f"{step}{few}", *(_share(at, name) for name in MEASURED)])
                    heading = ""
    return markdown([row, "step", *MEASURED.values()], body) if body else [NOT_MEASURED]


def classes(side: Side, rows: Sequence[str], only: Sequence[str]) -> list[str]:
    """How good they were by class of the mask, at the end, with the fewest labels; the commonest class first."""
    found = {}
    for row in rows:
        keys = {cell.key for cell in side.groups[row].of(side.labels[0])}
        found[row] = [line for line in side.by_class if line["key"] in keys]
    every = [line for lines in found.values() for line in lines]
    sizes: dict[str, int] = {}
    for line in every:
        sizes[line["class"]] = sizes.get(line["class"], 0) + int(line["pixels"])
    for name in only if sizes else ():
        if name not in sizes:
            file = f"{side.e.table}-pseudo-classes.csv"
            raise ConfigError(f"{file} has no class {name!r} of {side.e.dataset}{hint(name, sizes)}")
    body = []
    for name in sorted(sizes, key=lambda name: -sizes[name]):
        if not only or name in only:
            lines = {row: [line for line in found[row] if line["class"] == name] for row in rows}
            shares = [_share(lines[row], column) for row in rows for column in OF_CLASS]
            body.append([name, f"{100 * sizes[name] / sum(sizes.values()):.1f}", *shares])
    heads = [f"{row}: {title}" if not number else title for row in rows for number, title in enumerate(TITLES)]
    return markdown([side.heading(side.labels[0]), "of all pixels", *heads], body) if body else [NOT_MEASURED]


def _share(rows: Iterable[Row], name: str) -> str:
    values = [float(row[name]) for row in rows if row[name]]
    return f"{sum(values) / len(values):.1f}" if values else NONE


# ---- what is missing -------------------------------------------------------------------------------------------------


def missing(tables: Mapping[str, Sequence[Side]]) -> list[str]:
    """How many cells are done, and which are not."""
    every = [side for sides in tables.values() for side in sides]
    titles = {side.e.dataset: side.title for side in every}
    body = []
    for sides in tables.values():
        first, counts = sides[0].e, {side.e.dataset: side.counts() for side in sides}
        figures = [text for dataset in titles for text in counts.get(dataset, (NONE, NONE))]
        body.append([first.title, f"`{Path(first.source).name}`", *figures])
    head = ["table", "configuration", *(text for title in titles.values() for text in (f"{title}: cells", "done"))]
    runs = {(side.e.out_folder, cell.key) for side in every for cell in side.every}
    done = {(side.e.out_folder, key): row["minutes"] for side in every for key, row in side.known.items()}
    timed = [float(minutes) for minutes in done.values() if minutes]
    took = f", which took {duration(60 * sum(timed))} together, each on its own clock" if timed else ""
    told = [f"Tables share runs: of {len(runs)} runs {len(done)} are done{took}.", ""]
    left = [f"- {side.e.table}, {text}" for side in every for text in _unfinished(side)]
    return [*markdown(head, body), *told, *(["Not done:", "", *left] if left else [])]


def _unfinished(side: Side) -> list[str]:
    """Numbers of labels of which no run is done, together; else row by row, with seeds where some are done."""
    lines = []
    for count in filter(side.is_begun, side.labels):
        rows = []
        for group in side.groups.values():
            cells = group.of(count)
            left = [cell for cell in cells if cell.key not in side.known]
            seeds = ", ".join(dict.fromkeys(str(cell.seed) for cell in left))
            some = f" ({len(left)} of {len(cells)}: seed {seeds})" if len(left) < len(cells) else ""
            rows += [f"{group.name}{some}"] if left else []
        if rows:
            lines.append(f"{side.heading(count)}: {'; '.join(rows)}")
    if waiting := [count for count in side.labels if not side.is_begun(count)]:
        those = "" if waiting == [None] else f", {', '.join(map(str, waiting))} labels"
        lines.append(f"{side.title}{those}: all")
    return lines
