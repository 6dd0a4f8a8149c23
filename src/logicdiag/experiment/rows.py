"""Results as rows of CSV files that grow: what other machines or data sets brought stays."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import DataError
from ..files import written_whole

Row = dict[str, str]


@dataclass(frozen=True)
class Merged:
    csv: Path
    rows: list[Row]


def read(path: Path, needed: Sequence[str] = ()) -> list[Row]:
    if not path.is_file():
        return []
    try:
        with open(path, newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file, restkey="", restval="")
            missing = [name for name in needed if name not in (reader.fieldnames or ())]
            if missing:
                raise DataError(f"{path}: the column {missing[0]!r} is missing, so it is not a table of logicdiag")
            return list(reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: cannot be read as a table: {error}") from None


def write(path: Path, rows: Sequence[Row], first: Sequence[str], last: Sequence[str]) -> None:
    """`first` columns, those that the table varies, `last` columns; rows stay in their order."""
    between = dict.fromkeys(name for row in rows for name in row if name not in (*first, *last))
    path.parent.mkdir(parents=True, exist_ok=True)
    with written_whole([path]) as [part], open(part, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [*first, *between, *last], restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
