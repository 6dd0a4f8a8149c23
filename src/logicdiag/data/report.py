"""What a check of a data set found, as data, as rows and as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

SHOWN = 20
"""Findings of one kind that are printed; the report holds all."""


@dataclass(frozen=True)
class Finding:
    """Something wrong, or worth knowing, with the file or class named."""

    kind: str
    """broken, missing, unreadable, wrong_ids, size, colour, overlap (errors);
    no_class, all_ignore, duplicate, few, turned."""
    split: str
    message: str
    is_error: bool

    def __str__(self) -> str:
        place = f"{self.split}: " if self.split else ""
        return f"{'error' if self.is_error else 'warning'}: {place}{self.message}"


@dataclass(frozen=True, eq=False)
class SplitReport:
    """One split: how many images, of which sizes, and what their masks show. Without masks there are no counts."""

    name: str
    source: str
    known: str | None
    images: int
    sizes: tuple[tuple[int, int], ...]
    """Height and width of every image that could be read, from the smallest to the largest."""
    pixels: NDArray[np.int64] | None = None
    """Of each leaf, and last of those that are ignored."""
    images_of: NDArray[np.int64] | None = None
    """How many images show each leaf."""


@dataclass(frozen=True)
class TableData:
    """A table as plain rows."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Report:
    """What a check found; `ok` if there is no error among it."""

    name: str
    leaves: tuple[str, ...]
    splits: tuple[SplitReport, ...]
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        return not any(finding.is_error for finding in self.findings)

    @property
    def summary(self) -> str:
        errors = sum(finding.is_error for finding in self.findings)
        warnings = len(self.findings) - errors
        return f"{self.name}: {_count(errors, 'error')}, {_count(warnings, 'warning')}"

    def tables(self) -> list[TableData]:
        """The splits, and what their masks show."""
        if not self.splits:
            return []
        rows: tuple[tuple[str, ...], ...] = tuple(
            (s.name, str(s.images), *_spread(s.sizes), s.known or s.source) for s in self.splits
        )
        tables = [TableData("splits", ("split", "images", "smallest", "median", "largest", "list"), rows)]
        masked = [s for s in self.splits if s.pixels is not None and s.images]
        if masked:
            columns = ("class", *(f"{s.name} {what}" for s in masked for what in ("images", "pixels")))
            names = (*self.leaves, "ignored")
            rows = tuple((leaf, *(cell for s in masked for cell in _shown(s, i))) for i, leaf in enumerate(names))
            tables.append(TableData("classes", columns, rows))
        return tables

    def render(self) -> RenderableType:
        parts: list[RenderableType] = []
        for data in self.tables():
            table = Table(title=data.title)
            for i, column in enumerate(data.columns):
                text = i == 0 or column == "list"
                table.add_column(escape(column), justify="left" if text else "right", overflow="fold")
            for row in data.rows:
                table.add_row(*map(escape, row))
            parts.append(table)
        seen: Counter[tuple[str, bool]] = Counter()
        for finding in sorted(self.findings, key=lambda f: not f.is_error):
            seen[finding.kind, finding.is_error] += 1
            if seen[finding.kind, finding.is_error] <= SHOWN:
                colour = "red" if finding.is_error else "yellow"
                level, _, rest = str(finding).partition(":")
                parts.append(f"[{colour}]{level}[/]:{escape(rest)}")
        parts += [f"and {n - SHOWN} more of the kind {kind}" for (kind, _), n in seen.items() if n > SHOWN]
        return Group(*parts, escape(self.summary))

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "name": self.name,
            "ok": self.ok,
            "splits": {
                s.name: {
                    "list": s.source,
                    "known": s.known,
                    "images": s.images,
                    "sizes": dict(zip(("smallest", "median", "largest"), _spread(s.sizes), strict=True)),
                    **_class_counts(s, self.leaves),
                }
                for s in self.splits
            },
            "findings": [vars(finding) for finding in self.findings],
        }


def _class_counts(split: SplitReport, leaves: tuple[str, ...]) -> dict[str, Any]:
    if split.pixels is None or split.images_of is None:
        return {}
    names = (*leaves, "ignored")
    pairs = zip(split.images_of.tolist(), split.pixels.tolist(), strict=True)
    return {"classes": {name: {"images": n, "pixels": p} for name, (n, p) in zip(names, pairs, strict=True)}}


def _shown(split: SplitReport, leaf: int) -> tuple[str, str]:
    assert split.pixels is not None
    assert split.images_of is not None
    share = split.pixels[leaf] / max(1, int(split.pixels.sum()))
    shown = "-" if not share else f"{share:.2%}" if share >= 0.00005 else "<0.01%"
    return str(split.images_of[leaf]), shown


def _spread(sizes: Sequence[tuple[int, int]]) -> tuple[str, str, str]:
    """Width x height of the smallest, the median and the largest image."""
    if not sizes:
        return "-", "-", "-"
    smallest, median, largest = (f"{w} x {h}" for h, w in (sizes[0], sizes[len(sizes) // 2], sizes[-1]))
    return smallest, median, largest


def _count(number: int, what: str) -> str:
    """
    >>> _count(0, "error"), _count(1, "error")
    ('no errors', '1 error')
    """
    return f"{number or 'no'} {what}{'' if number == 1 else 's'}"
