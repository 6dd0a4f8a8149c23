"""Which option of an axis is chosen, by a rule that can be written down before the runs: the one with the best mean,
unless the one that there is comes close.

Whatever else varies makes a trial of all options; a trial counts when each of them has its run.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .beside import NONE, Side
from .grid import Cell, shown
from .table import markdown, row_name

Trial = tuple[str, str, int | None, int]
"""Data set, row but for the axis, labels, seed."""


@dataclass
class Rule:
    """Keys of a marker `choice`."""

    axis: str = "name"
    stays: str | int | float | None = None
    """The option that is kept unless another is better by the margin."""
    options: list[str] = field(default_factory=list)
    """Of the axis, as tables call them; all that it has if empty."""
    margin: float = 0.5
    """Points of mIoU, in the mean of the data sets."""
    same: dict[str, str] = field(default_factory=dict)
    """Row -> another one: data sets that leave the first out have the runs of the second in its place, too."""


@dataclass(frozen=True)
class Found:
    """mIoU at the last checkpoint, by trial and option."""

    options: list[str]
    planned: list[Trial]
    values: dict[tuple[Trial, str], float]
    missing: int
    """Runs."""

    @property
    def complete(self) -> list[Trial]:
        return [trial for trial in self.planned if all((trial, option) in self.values for option in self.options)]

    def mean(self, dataset: str, option: str) -> float | None:
        """Over the trials of a data set that all options have."""
        found = [self.values[trial, option] for trial in self.complete if trial[0] == dataset]
        return statistics.fmean(found) if found else None

    def score(self, option: str) -> float | None:
        """The mean of the data sets."""
        means = [self.mean(dataset, option) for dataset in dict.fromkeys(trial[0] for trial in self.planned)]
        known = [mean for mean in means if mean is not None]
        return statistics.fmean(known) if known and len(known) == len(means) else None


def axes_of(sides: Sequence[Side]) -> dict[str, list[str]]:
    """The options of every axis, in the order of the file."""
    found: dict[str, dict[str, None]] = {}
    for side in sides:
        for cell in side.every:
            for axis, option in cell.options.items():
                found.setdefault(axis, {})[option] = None
    return {axis: list(options) for axis, options in found.items()}


def rows_of(sides: Sequence[Side], axis: str) -> list[str]:
    """What else there is than the axis."""
    return list(dict.fromkeys(_beside(cell, axis) for side in sides for cell in side.every if axis in cell.options))


def choice(sides: Sequence[Side], rule: Rule) -> list[str]:
    """A table of all trials, and what the rule says of it."""
    options = rule.options or axes_of(sides)[rule.axis]
    found = _read(sides, rule.axis, options, rule.same)
    body: list[list[str]] = []
    for side in sides:
        for count in side.labels:
            mine = [trial for trial in found.planned if trial[0] == side.e.dataset and trial[2] == count]
            if mine:
                seeds = ", ".join(dict.fromkeys(str(seed) for *_, seed in mine))
                body.append([f"**{side.heading(count)}**, lists {seeds}", *[""] * len(options)])
            for row in dict.fromkeys(row for _, row, _, _ in mine):
                trials = [trial for trial in mine if trial[1] == row]
                body.append([row or "mIoU", *(_listed(found, trials, option) for option in options)])
        if complete := [trial for trial in found.complete if trial[0] == side.e.dataset]:
            head = f"mean of the {len(complete)} that all have"
            body.append([head, *(_mean(found.mean(side.e.dataset, option)) for option in options)])
    body.append(["**mean of the data sets**", *(_mean(found.score(option)) for option in options)])
    return [*markdown(["", *options], body), _verdict(found, shown(rule.stays), rule.margin)]


def _read(sides: Sequence[Side], axis: str, options: Sequence[str], same: Mapping[str, str]) -> Found:
    planned: dict[Trial, dict[str, str]] = {}
    values: dict[tuple[Trial, str], float] = {}
    missing: set[str] = set()
    for side in sides:
        cells = [cell for cell in side.every if cell.options.get(axis) in options]
        rows = {cell.name: _beside(cell, axis) for cell in cells}
        taken = {row: row for row in rows.values()}
        taken |= {f"{row} (as {other})": other for row, other in same.items() if row not in taken}
        for row, of in taken.items():
            for cell in (cell for cell in cells if rows[cell.name] == of):
                trial = (side.e.dataset, row, cell.labels, cell.seed)
                planned.setdefault(trial, {})[cell.options[axis]] = cell.key
                if text := side.known.get(cell.key, {}).get("miou_last"):
                    values[trial, cell.options[axis]] = float(text)
    tried = [trial for trial, keys in planned.items() if len(keys) == len(options)]
    for trial in tried:
        missing |= {key for option, key in planned[trial].items() if (trial, option) not in values}
    return Found(list(options), tried, values, len(missing))


def _beside(cell: Cell, axis: str) -> str:
    """Its row, but for the axis."""
    return row_name({name: option for name, option in cell.options.items() if name != axis})


def _listed(found: Found, trials: Sequence[Trial], option: str) -> str:
    return ", ".join(_figure(found.values.get((trial, option))) for trial in sorted(trials, key=lambda t: t[3]))


def _figure(value: float | None) -> str:
    return NONE if value is None else f"{value:.1f}"


def _mean(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}"


def _verdict(found: Found, stays: str, margin: float) -> str:
    scores = {option: found.score(option) for option in found.options}
    known = {option: score for option, score in scores.items() if score is not None}
    if stays not in known:
        return "Nothing can be compared yet."
    best = max(known, key=lambda option: known[option])
    ahead = known[best] - known[stays]
    said = (
        f"**{best}** takes the place of {stays}: it is {ahead:.2f} above it in the mean of the data sets"
        if ahead > 0 and ahead >= margin
        else f"**{stays}** stays: in the mean of the data sets none is {margin:g} above it"
    )
    if not found.missing:
        return f"Decided: {said}."
    missing = f"{found.missing} {'run is' if found.missing == 1 else 'runs are'} missing"
    return f"Not decided: {missing}. By what there is, {said}."
