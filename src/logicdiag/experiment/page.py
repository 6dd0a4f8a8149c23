"""A page of Markdown that has the tables of a suite in it: text by hand, and what stands between markers by command.

<!-- table methods -->          mIoU, data sets side by side
<!-- pseudo methods             how good pseudo labels of a row were
row: LogicDiag
-->
<!-- missing -->                which cells are not done
<!-- end -->                    ends each of them
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..engine.load import build, parse_value
from ..errors import ConfigError, hint
from . import beside
from .suite import Suite

MARKER = re.compile(r"^<!-- (table|pseudo|missing|end)\b(.*?)-->$", re.MULTILINE | re.DOTALL)


@dataclass
class _Table:
    """Keys of a marker `table`."""

    spoiled: dict[str, Any] = field(default_factory=dict)
    """Data set -> rows whose figures are put in brackets, and that nothing is compared with."""
    pairs: list[tuple[str, str]] = field(default_factory=list)
    """Rows that are compared besides those with the reference: the first less the second."""


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

    def _parsed(self, text: str) -> list[str | Callable[[], list[str]]]:
        """What stands by hand, and what makes the rest."""
        pieces: list[str | Callable[[], list[str]]] = []
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

    def _maker(self, kind: str, rest: str, where: str) -> Callable[[], list[str]]:
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
        sides, data = self.tables[name], parse_value(keys, where) or {}
        if not isinstance(data, dict):
            raise ConfigError(f"{where}: expected keys such as spoiled: behind {kind} {name}, found {data!r}")
        rows = list(dict.fromkeys(row for side in sides for row in side.groups))
        if kind == "pseudo":
            about = build(_Pseudo, data, where)
            _check_rows([about.row], rows, f"{where}: row")
            return lambda: beside.pseudo(sides, about.row, about.steps)
        of = build(_Table, data, where)
        _check_rows([row for pair in of.pairs for row in pair], rows, f"{where}: pairs")
        datasets = [side.e.dataset for side in sides]
        for dataset, bad in of.spoiled.items():
            if dataset not in datasets:
                near = hint(str(dataset), datasets)
                raise ConfigError(f"{where}: spoiled has {dataset!r}, which is no data set of {name}{near}")
            if not isinstance(bad, list):
                raise ConfigError(f"{where}: spoiled.{dataset} is {bad!r}, expected a list of rows")
            _check_rows(bad, rows, f"{where}: spoiled.{dataset}")
        return lambda: beside.results(sides, of.spoiled, of.pairs)


def _check_rows(given: Iterable[Any], rows: Iterable[str], what: str) -> None:
    for row in given:
        if row not in rows:
            raise ConfigError(f"{what} has {row!r}, which is no row of the table{hint(str(row), rows)}")
