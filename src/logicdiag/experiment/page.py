"""A page of Markdown that has the tables of a suite in it: text by hand, and what stands between markers by command.

<!-- table methods -->          mIoU, data sets side by side
<!-- figures methods            other columns of the same CSV file
columns: {miou_top: groups}
-->
<!-- pseudo methods             how good pseudo labels of a row were
row: LogicDiag
-->
<!-- classes methods            the same by class, of one data set
dataset: camvid
rows: [LogicDiag]
-->
<!-- choice teacher             what is chosen among options
axis: method.teacher_decay
stays: 0.996
-->
<!-- missing -->                which cells are not done
<!-- end -->                    ends each of them
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..engine.load import build, parse_value
from ..errors import ConfigError, hint
from . import beside
from .choice import Rule, axes_of, choice, rows_of
from .grid import COLUMNS, MORE, shown
from .suite import Suite

Sides = list[beside.Side]
Maker = Callable[[], list[str]]
FIGURES = (*COLUMNS[6:], *MORE[:5])
"""Columns of CSV files that a mean can be taken of."""


@dataclass
class _Table:
    """Keys of a marker `table`."""

    spoiled: dict[str, Any] = field(default_factory=dict)
    """Data set -> rows whose figures are put in brackets, and that nothing is compared with."""
    pairs: list[tuple[str, str]] = field(default_factory=list)
    """Rows that are compared besides those with the reference: the first less the second."""


@dataclass
class _Figures:
    """Keys of a marker `figures`."""

    columns: dict[str, Any] = field(default_factory=dict)
    """Of the CSV file, by what they are called on the page."""
    rows: list[str] = field(default_factory=list)
    """All if empty."""
    pairs: list[tuple[str, str]] = field(default_factory=list)
    """As of a table."""


@dataclass
class _Classes:
    """Keys of a marker `classes`."""

    dataset: str = ""
    rows: list[str] = field(default_factory=list)
    classes: list[str] = field(default_factory=list)
    """All if empty."""


@dataclass
class _Pseudo:
    """Keys of a marker `pseudo`."""

    row: str = ""
    steps: list[int] = field(default_factory=list)
    """All that were measured if empty."""


class Page:
    """Mistakes in it are told when it is opened; CSV files are read for `text`."""

    def __init__(self, path: Path, suite: Suite) -> None:
        self.path = path
        datasets = list(dict.fromkeys(e.dataset for e in suite.experiments))
        for name, title in suite.names.items():
            if name not in datasets:
                raise ConfigError(
                    f"{suite.source}: names has {name!r}, which is no data set of it{hint(name, datasets)}"
                )
            if not isinstance(title, str):
                raise ConfigError(f"{suite.source}: names.{name} is {title!r}, expected text")
        self.tables: dict[str, list[beside.Side]] = {}
        for e in suite.experiments:
            self.tables.setdefault(e.table, []).append(beside.side_of(e, suite.names.get(e.dataset, e.dataset)))
        try:
            self._pieces = self._parsed(path.read_text("utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise ConfigError(f"{suite.source}: the page {path} cannot be read: {reason}") from None

    @property
    def is_empty(self) -> bool:
        """Whether no run of any table is known."""
        return not any(side.known for sides in self.tables.values() for side in sides)

    def text(self) -> str:
        made = [piece if isinstance(piece, str) else "\n".join(piece()).strip() for piece in self._pieces]
        return "".join(made)

    def _parsed(self, text: str) -> list[str | Maker]:
        """What stands by hand, and what makes the rest."""
        pieces: list[str | Maker] = []
        at, opened = 0, ""
        for found in MARKER.finditer(text):
            where = f"{self.path}:{text.count(chr(10), 0, found.start()) + 1}"
            ends = found[1] == "end"
            if ends and not opened:
                raise ConfigError(f"{where}: <!-- end --> ends nothing, expected <!-- table NAME --> or such before it")
            if opened and not ends:
                raise ConfigError(f"{opened} has no <!-- end --> before the next one")
            if ends:
                opened, at = "", found.start()
                pieces.append("\n\n")
            else:
                opened = f"{where}: <!-- {found[1]} -->"
                pieces += [text[at : found.end()] + "\n\n", self._maker(found[1], found[2], where)]
        if opened:
            raise ConfigError(f"{opened} has no <!-- end -->")
        return [*pieces, text[at:]]

    def _maker(self, kind: str, rest: str, where: str) -> Maker:
        """`rest` is what the marker says behind its kind: a table's name, then YAML."""
        if kind == "missing":
            if rest.strip():
                raise ConfigError(f"{where}: missing takes nothing behind it, found {rest.strip()!r}")
            return lambda: beside.missing(self.tables)
        name, _, keys = rest.strip().partition("\n")
        if name not in self.tables:
            raise ConfigError(
                f"{where}: {kind} is of {name!r}, which is no table of the suite{hint(name, self.tables)}"
            )
        data = parse_value(keys, where) or {}
        if not isinstance(data, dict):
            raise ConfigError(f"{where}: expected keys such as {KEYS[kind]}: behind {kind} {name}, found {data!r}")
        return MAKERS[kind](self.tables[name], data, where)


def _table(sides: Sides, data: dict[str, Any], where: str) -> Maker:
    of = build(_Table, data, where)
    rows = _rows(sides)
    _check(where, "pairs", (row for pair in of.pairs for row in pair), rows)
    for dataset, bad in of.spoiled.items():
        _side(sides, dataset, f"{where}: spoiled")
        if not isinstance(bad, list):
            raise ConfigError(f"{where}: spoiled.{dataset} is {bad!r}, expected a list of rows")
        _check(where, f"spoiled.{dataset}", bad, rows)
    return lambda: beside.results(sides, of.spoiled, of.pairs)


def _figures(sides: Sides, data: dict[str, Any], where: str) -> Maker:
    of = build(_Figures, data, where)
    _check(where, "rows", [*of.rows, *(row for pair in of.pairs for row in pair)], _rows(sides))
    columns = {name: str(title) for name, title in of.columns.items()}
    _check(where, "columns", columns, FIGURES, "column with figures")
    return lambda: beside.figures(sides, columns, of.rows or _rows(sides), of.pairs)


def _pseudo(sides: Sides, data: dict[str, Any], where: str) -> Maker:
    of = build(_Pseudo, data, where)
    _check(where, "row", [of.row], _rows(sides))
    return lambda: beside.pseudo(sides, of.row, of.steps)


def _classes(sides: Sides, data: dict[str, Any], where: str) -> Maker:
    of = build(_Classes, data, where)
    side = _side(sides, of.dataset, f"{where}: dataset")
    if not of.rows:
        raise ConfigError(f"{where}: rows are missing, expected a list of rows, such as {_rows(sides)[:1]}")
    _check(where, "rows", of.rows, list(side.groups))
    return lambda: beside.classes(side, of.rows, of.classes)


def _choice(sides: Sides, data: dict[str, Any], where: str) -> Maker:
    rule = build(Rule, data, where)
    axes = axes_of(sides)
    if rule.axis not in axes:
        raise ConfigError(f"{where}: axis is {rule.axis!r}, which is no axis of the table{hint(rule.axis, axes)}")
    what = f"option of {rule.axis}"
    _check(where, "options", rule.options, axes[rule.axis], what)
    _check(where, "stays", [shown(rule.stays)], rule.options or axes[rule.axis], what)
    _check(where, "same", (row for pair in rule.same.items() for row in pair), rows_of(sides, rule.axis))
    return lambda: choice(sides, rule)


MAKERS: dict[str, Callable[[Sides, dict[str, Any], str], Maker]] = {
    "table": _table,
    "figures": _figures,
    "pseudo": _pseudo,
    "classes": _classes,
    "choice": _choice,
}
"""What stands between a marker of this kind and its end; mistakes in its keys are told when the page is opened."""
KEYS = {"table": "spoiled", "figures": "columns", "pseudo": "row", "classes": "rows", "choice": "axis"}
"""An example for each."""
MARKER = re.compile(rf"^<!-- ({'|'.join(MAKERS)}|missing|end)\b(.*?)-->$", re.MULTILINE | re.DOTALL)


def _rows(sides: Sides) -> list[str]:
    return list(dict.fromkeys(row for side in sides for row in side.groups))


def _side(sides: Sides, dataset: str, what: str) -> beside.Side:
    found = {side.e.dataset: side for side in sides}
    if dataset not in found:
        table = sides[0].e.table
        raise ConfigError(f"{what} has {dataset!r}, which is no data set of {table}{hint(str(dataset), found)}")
    return found[dataset]


def _check(where: str, key: str, given: Iterable[Any], known: Sequence[str], what: str = "row of the table") -> None:
    for one in given:
        if one not in known:
            raise ConfigError(f"{where}: {key} has {one!r}, which is no {what}{hint(str(one), known)}")
