"""Which option of an axis is chosen, by a rule that can be written down before the runs: the one with the best mean,
unless the one that there is comes close.

Whatever else varies makes a trial of all options; a trial counts when each of them has its run.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
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


@dataclass(frozen=True)
class Found:
    """mIoU at the last checkpoint, by trial and option."""

    options: list[str]
    planned: dict[Trial, set[str]]
    values: dict[tuple[Trial, str], float]

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
        for cell in _cells(side):
            for axis, option in cell.options.items():
                found.setdefault(axis, {})[option] = None
    return {axis: list(options) for axis, options in found.items()}


def choice(sides: Sequence[Side], rule: Rule) -> list[str]:
    """A table of all trials, and what the rule says of it."""
    options = rule.options or axes_of(sides)[rule.axis]
    found = _read(sides, rule.axis, options)
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


def _read(sides: Sequence[Side], axis: str, options: Sequence[str]) -> Found:
    planned: dict[Trial, set[str]] = {}
    values = {}
    for side in sides:
        for cell in _cells(side):
            option = cell.options.get(axis)
            if option is not None and option in options:
                others = {name: value for name, value in cell.options.items() if name != axis}
                trial = (side.e.dataset, row_name(others), cell.labels, cell.seed)
                planned.setdefault(trial, set()).add(option)
                if cell.key in side.known:
                    values[trial, option] = float(side.known[cell.key]["miou_last"])
    tried = {trial: some for trial, some in planned.items() if len(some) == len(options)}
    return Found(list(options), tried, {place: value for place, value in values.items() if place[0] in tried})


def _cells(side: Side) -> Iterator[Cell]:
    return (cell for group in side.groups.values() for cell in group.cells)


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
        if best != stays and ahead >= margin
        else f"**{stays}** stays: in the mean of the data sets none is {margin:g} above it"
    )
    missing = len(found.planned) * len(found.options) - len(found.values)
    if not missing:
        return f"Decided: {said}."
    return f"Not decided: {missing} {'run is' if missing == 1 else 'runs are'} missing. By what there is, {said}."
