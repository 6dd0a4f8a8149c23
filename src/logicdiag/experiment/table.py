"""The table of an experiment: mean and standard deviation over seeds, as Markdown; one row a run, as CSV."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import ConfigError, hint
from .accuracy import read_pseudo
from .config import Experiment
from .grid import COLUMNS, MORE, Cell
from .rows import Merged, Row, read, write
from .show import duration
from .store import Result, Store, last_step, read_result, split_name
from .tally import SHARES

IDENTITY = ("dataset", "cell", "key")
WHICH = ("last", "best")
SAME = "the reported list"
"""In the column chosen_on: the best checkpoint was chosen on what is reported."""


@dataclass(frozen=True)
class Mean:
    """Over `n` of `planned` runs; the deviation is that of a sample, and NaN for a single run."""

    mean: float
    deviation: float
    n: int
    planned: int

    def __str__(self) -> str:
        """
        >>> str(mean([40.0, 42.0], 3)), str(mean([40.0], 3)), str(mean([], 3))
        ('41.00 ± 1.41 (2 of 3)', '40.00 (1 of 3)', '–')
        """
        if not self.n:
            return "–"
        spread = "" if math.isnan(self.deviation) else f" ± {self.deviation:.2f}"
        return f"{self.mean:.2f}{spread} ({self.n}{f' of {self.planned}' * (self.n < self.planned)})"


def mean(values: Sequence[float], planned: int) -> Mean:
    deviation = statistics.stdev(values) if len(values) > 1 else math.nan
    return Mean(statistics.fmean(values) if values else math.nan, deviation, len(values), planned)


def of_runs(known: Mapping[str, Row], cells: Sequence[Cell], column: str) -> Mean:
    """The mean of a column over the runs that have it."""
    rows = [known[cell.key] for cell in cells if cell.key in known]
    return mean([float(row[column]) for row in rows if row.get(column)], len(cells))


@dataclass(frozen=True)
class Group:
    """A row of the table: cells that differ in labels, seeds and pooled axes alone."""

    name: str
    cells: tuple[Cell, ...]

    def of(self, labels: int | None) -> list[Cell]:
        return [cell for cell in self.cells if cell.labels == labels]


@dataclass(frozen=True)
class ResultTable:
    csv: Path
    groups: list[Group]
    labels: list[int | None]
    means: dict[tuple[str, int | None, str], Mean]
    """(group, labels, last or best) -> mean."""
    markdown: str

    @property
    def is_empty(self) -> bool:
        """Whether no run of it is done."""
        return not any(mean.n for mean in self.means.values())


def make(e: Experiment, cells: Sequence[Cell], prune: bool = False, others: Sequence[Experiment] = ()) -> ResultTable:
    """Merge what is on disk, and what `others` have of the same runs, into the CSV file, and make the table of all."""
    store = Store(e.out_folder)
    results = {cell.key: read_result(store.run(cell)) for cell in cells}
    fresh = [row_of(cell, results[cell.key], e) for cell in cells if results[cell.key].is_done(e.evaluate)]
    csv = e.results_folder / f"{e.table}.csv"
    rows = _all_rows(e, cells, others, "", fresh, IDENTITY, (*COLUMNS, *MORE))
    ours = {(cell.name, cell.key) for cell in cells}
    stale = [row for row in rows if row["dataset"] == e.dataset and (row["cell"], row["key"]) not in ours]
    if prune:
        rows = [row for row in rows if row not in stale]
        stale = []
    if rows or csv.is_file():
        write(csv, rows, COLUMNS, MORE)
    known, groups, labels = known_rows(e, rows), grouped(cells, e.pool), counts_of(cells)
    means = {
        (group.name, count, which): of_runs(known, group.of(count), f"miou_{which}")
        for group in groups
        for count in labels
        for which in WHICH
    }
    text = [f"# {e.title}\n", *_heading(e, known, cells)]
    text += _tables(groups, labels, means)
    text += _differences(e, groups, labels, known)
    text += _notes(known, cells, results, len(stale))
    text += _unfinished(groups, labels, known, store)
    return ResultTable(csv, groups, labels, means, "\n".join(text) + "\n")


def _all_rows(
    e: Experiment,
    cells: Sequence[Cell],
    others: Sequence[Experiment],
    kind: str,
    fresh: Sequence[Row],
    identity: Sequence[str],
    figures: Sequence[str],
) -> list[Row]:
    """Fresh ones, those of the CSV file, and those that other tables have of the same runs; of two the first counts.

    A run's rows are those of every cell that has its key, whatever they were called; `figures` are the columns that
    say no name.
    """
    named: dict[str, list[Cell]] = {}
    for cell in cells:
        named.setdefault(cell.key, []).append(cell)
    files = [of.results_folder / f"{of.table}{kind}.csv" for of in (e, *others) if _same_runs(e, of)]
    rows = [*fresh, *(row for file in dict.fromkeys(files) for row in read(file, identity))]
    found: dict[tuple[str, ...], Row] = {}
    for row in rows:
        kept = {name: value for name, value in row.items() if name in figures}
        for cell in named.get(row["key"], []) if row["dataset"] == e.dataset else []:
            now = kept | {name: str(value) for name, value in cell.columns().items() if value is not None}
            found.setdefault(tuple(now.get(name, "") for name in identity), now)
    place = {(cell.name, cell.key): number for number, cell in enumerate(cells)}
    strangers = [row for row in read(files[0]) if row["dataset"] != e.dataset or row["key"] not in named]
    return sorted(
        [*found.values(), *strangers],
        key=lambda row: (row["dataset"], place.get((row["cell"], row["key"]), len(place))),
    )


def _same_runs(e: Experiment, other: Experiment) -> bool:
    return (other.dataset, other.evaluate) == (e.dataset, e.evaluate)


def row_of(cell: Cell, result: Result, e: Experiment) -> Row:
    """mIoU is in per cent, at the leaves. Of the last checkpoint are `miou_top`, that of the topmost concepts,
    `miou_parents`, if siblings were never confused, and `violations`, of how many pixels the outputs break a rule.
    """
    found = result.evaluated[split_name(e.evaluate)]["last"]
    values = cell.columns()
    values["miou_top"] = _per_cent(found["levels"][0]["miou"] if "levels" in found else None)
    values["miou_parents"] = _per_cent(found.get("miou_parents"))
    values["violations"] = _per_cent((found.get("violations") or {}).get("share"))
    values["labels"] = result.labels if cell.labels is None else cell.labels
    for which in WHICH:
        values[f"miou_{which}"] = _number(result.miou(e.evaluate, which))
        values[f"val_{which}"] = _per_cent(result.val.get(which))
    same = result.val.get("fingerprint") == found["list"]["fingerprint"]
    values |= {
        "best_step": result.val.get("best_step"),
        "split": split_name(e.evaluate),
        "images": found["images"],
        "chosen_on": "" if not result.val else SAME if same else str(cell.config.data.val),
        "steps": cell.config.train.steps,
        "minutes": f"{result.seconds / 60:.2f}",
    }
    return {name: "" if value is None else str(value) for name, value in values.items()}


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _per_cent(share: float | None) -> str:
    return _number(None if share is None else 100 * share)


def known_rows(e: Experiment, rows: Iterable[Row]) -> dict[str, Row]:
    """The rows of a CSV file that are of this data set and reported list, by the key of their run."""
    return {row["key"]: row for row in rows if row["dataset"] == e.dataset and row["split"] == split_name(e.evaluate)}


def reported(e: Experiment) -> dict[str, Row]:
    """Those of the file as it is, whoever made the runs."""
    return known_rows(e, read(e.results_folder / f"{e.table}.csv", IDENTITY))


def counts_of(cells: Iterable[Cell]) -> list[int | None]:
    """The numbers of labels, the fewest first."""
    return sorted(dict.fromkeys(cell.labels for cell in cells), key=lambda count: count or 0)


def grouped(cells: Iterable[Cell], pool: Sequence[str]) -> list[Group]:
    found: dict[str, list[Cell]] = {}
    for cell in sorted(cells, key=lambda cell: cell.place):
        name = row_name({axis: value for axis, value in cell.options.items() if axis not in pool})
        found.setdefault(name or "all", []).append(cell)
    return [Group(name, tuple(members)) for name, members in found.items()]


def row_name(options: Mapping[str, str]) -> str:
    """
    >>> row_name({"name": "FixMatch", "method.teacher_decay": "0.99"})
    'FixMatch, method.teacher_decay = 0.99'
    """
    return ", ".join(f"{axis} = {value}" if "." in axis else value for axis, value in options.items())


def pseudo_rows(e: Experiment, cells: Sequence[Cell], prune: bool = False, others: Sequence[Experiment] = ()) -> Merged:
    """How good pseudo labels were: one row for each snapshot of each run, merged into a CSV file of their own.

    Shares are in per cent.
    """
    fresh = [
        _measured_row(cell, measured, moment, SHARES) | {"step": str(moment["step"])}
        for cell, measured in _measured(e, cells)
        for moment in measured["moments"]
    ]
    return _merged(e, cells, others, "pseudo", fresh, ("step",), SHARES, prune)


def class_rows(e: Experiment, cells: Sequence[Cell], prune: bool = False, others: Sequence[Experiment] = ()) -> Merged:
    """The same by class of the mask, of the last snapshot of each run."""
    shares = (*SHARES, "precision")
    fresh = [
        _measured_row(cell, measured, found, shares) | {"step": str(last["step"]), "class": name}
        for cell, measured in _measured(e, cells)
        for last in measured["moments"][-1:]
        for name, found in last.get("classes", {}).items()
    ]
    return _merged(e, cells, others, "pseudo-classes", fresh, ("step", "class"), shares, prune)


def _measured(e: Experiment, cells: Sequence[Cell]) -> list[tuple[Cell, dict[str, Any]]]:
    store = Store(e.out_folder)
    found = ((cell, read_pseudo(store.run(cell))) for cell in cells)
    return [(cell, measured) for cell, measured in found if measured.get("moments")]


def _measured_row(cell: Cell, measured: dict[str, Any], found: dict[str, Any], shares: Sequence[str]) -> Row:
    values = {**cell.columns(), "steps": cell.config.train.steps}
    values |= {name: _per_cent(found.get(name)) for name in shares}
    values |= {"images": measured["images"], "pixels": found["pixels"]}
    return {name: "" if value is None else str(value) for name, value in values.items()}


def _merged(
    e: Experiment,
    cells: Sequence[Cell],
    others: Sequence[Experiment],
    kind: str,
    fresh: Sequence[Row],
    of_run: Sequence[str],
    shares: Sequence[str],
    prune: bool,
) -> Merged:
    """`of_run`: what tells the rows of one run apart."""
    csv = e.results_folder / f"{e.table}-{kind}.csv"
    identity, last = (*IDENTITY, *of_run), (*of_run, "steps", *shares, "images", "pixels", "cell", "key")
    rows = _all_rows(e, cells, others, f"-{kind}", fresh, identity, (*COLUMNS[:6], *last))
    places = {(cell.name, cell.key) for cell in cells}
    ours = [row for row in rows if row["dataset"] == e.dataset and (row["cell"], row["key"]) in places]
    if prune:
        rows = [row for row in rows if row["dataset"] != e.dataset or row in ours]
    if rows or csv.is_file():
        write(csv, rows, COLUMNS[:6], last)
    return Merged(csv, ours)


# ---- Markdown --------------------------------------------------------------------------------------------------------


def _heading(e: Experiment, known: dict[str, Row], cells: Sequence[Cell]) -> list[str]:
    images = sorted({int(row["images"]) for row in known.values()})
    count = f" ({', '.join(map(str, images))} images)" if images else ""
    over = "seeds" + "".join(f" and {axis}" for axis in e.pool)
    steps = ", ".join(map(str, sorted({cell.config.train.steps for cell in cells})))
    reported = f"`{cells[0].config.data.val if e.evaluate is None else e.evaluate}`"
    return [
        f"{e.dataset}, {steps} steps. mIoU in per cent on {reported}{count}: mean ± sample standard deviation over "
        f"{over} (number of runs).\n"
    ]


def _tables(
    groups: Sequence[Group], labels: Sequence[int | None], means: dict[tuple[str, int | None, str], Mean]
) -> list[str]:
    if len(labels) == 1:
        [count] = labels
        head = "" if count is None else f"{count} labels"
        body = [[group.name, *(str(means[group.name, count, which]) for which in WHICH)] for group in groups]
        return markdown([head, "last checkpoint", "best checkpoint"], body)
    out = []
    for which in WHICH:
        body = [[group.name, *(str(means[group.name, count, which]) for count in labels)] for group in groups]
        out += [f"**{which.capitalize()} checkpoint**\n", *markdown(["labels", *map(str, labels)], body)]
    return out


def _differences(
    e: Experiment, groups: Sequence[Group], labels: Sequence[int | None], known: dict[str, Row]
) -> list[str]:
    """Each run less the reference's with the same labels and seed: what chance does to both is taken out."""
    reference = reference_of(e, groups)
    if reference is None:
        return []
    body = []
    for group in groups:
        if group is not reference:
            found = [paired(group.of(count), reference.of(count), known) for count in labels]
            body.append([group.name, *(f"+{mean}" if mean.n and mean.mean >= 0 else str(mean) for mean in found)])
    head = ["labels" if len(labels) > 1 else "", *("last checkpoint" if n is None else f"{n}" for n in labels)]
    return [f"**Last checkpoint, less {e.reference} with the same labels and seed**\n", *markdown(head, body)]


def reference_of(e: Experiment, groups: Sequence[Group]) -> Group | None:
    if e.reference is None:
        return None
    names = [group.name for group in groups]
    if e.reference not in names:
        raise ConfigError(f"{e.source}: reference is {e.reference!r}, which is no row{hint(e.reference, names)}")
    return groups[names.index(e.reference)]


def paired(
    cells: Sequence[Cell], reference: Sequence[Cell], known: Mapping[str, Row], column: str = "miou_last"
) -> Mean:
    """The difference of runs with the same seed, where both have the figure."""
    having = {key: float(row[column]) for key, row in known.items() if row.get(column)}
    beside = {cell.seed: having[cell.key] for cell in reference if cell.key in having}
    pairs = [cell for cell in cells if cell.key in having and cell.seed in beside]
    return mean([having[cell.key] - beside[cell.seed] for cell in pairs], len(cells))


def markdown(head: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *body]
    return [*("| " + " | ".join(text.replace("|", "\\|") for text in line) + " |" for line in lines), ""]


def _notes(known: dict[str, Row], cells: Sequence[Cell], results: dict[str, Result], stale: int) -> list[str]:
    notes = []
    ours = {cell.key: known[cell.key] for cell in cells if cell.key in known}
    if any(row["chosen_on"] == SAME for row in ours.values()):
        notes.append("The best checkpoint was chosen on the very list that is reported: read *last*.")
    elif chosen := sorted({row["chosen_on"] for row in ours.values() if row["chosen_on"]}):
        notes.append(f"The best checkpoint was chosen on `{', '.join(chosen)}`, which is another list.")
    for cell in cells:
        count = results[cell.key].labels
        if cell.labels is not None and count not in (None, cell.labels):
            notes.append(f"{cell.name} was trained on {count} labelled images, not {cell.labels}.")
    if ours:
        timed = [float(row["minutes"]) for row in ours.values() if row["minutes"]]
        took = f"took {duration(60 * sum(timed))}"
        if len(timed) > 1:
            notes.append(f"{len(timed)} runs {took} together, each on its own clock.")
        elif timed:
            notes.append(f"1 run {took}.")
    if stale:
        some = f"{stale} rows of the CSV file are" if stale > 1 else "A row of the CSV file is"
        notes.append(f"{some} of other settings, and not in this table (`--prune` drops them).")
    return [*(f"- {note}" for note in notes), ""] if notes else []


def _unfinished(
    groups: Sequence[Group], labels: Sequence[int | None], known: dict[str, Row], store: Store
) -> list[str]:
    """Cells that failed or were begun, one by one; those that were not, row by row, or all of some number of labels."""
    lines, todo = [], 0
    for count in labels:
        planned = [(group, cell) for group in groups for cell in group.of(count)]
        missing = [(group, cell, _state(cell, store)) for group, cell in planned if cell.key not in known]
        waiting = [(group, cell) for group, cell, state in missing if not state]
        todo += len(missing)
        lines += [f"- {cell.name}: {state}" for _, cell, state in missing if state]
        those = "" if count is None else f", {count} labels"
        if waiting == planned:
            lines.append(f"- all rows{those}: not begun")
            continue
        for group in groups:
            if mine := [cell for row, cell in waiting if row is group]:
                seeds = ", ".join(dict.fromkeys(str(cell.seed) for cell in mine))
                share = f"{len(mine)} of {len(group.of(count))}"
                lines.append(f"- {group.name}{those}: {share} not begun (seed {seeds})")
    return [f"{todo} of the cells {'is' if todo == 1 else 'are'} not done:\n", *lines, ""] if lines else []


def _state(cell: Cell, store: Store) -> str:
    """How far a cell that is not done has come; empty if it was not begun."""
    step, why = last_step(store.run(cell)), store.failure(cell)
    return f"failed: {why}" if why else f"at step {step} of {cell.config.train.steps}" if step else ""
