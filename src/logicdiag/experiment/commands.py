"""The experiment commands: read the file, do the work, say what came of it."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from ..errors import ConfigError, LogicDiagError
from ..files import Progress, written_whole
from .config import load_experiment
from .grid import Cell, expand, select, unique
from .runner import Outcome, Runner, located
from .show import Show
from .store import Store, last_step


def run_experiment(path: str, changes: Sequence[str], only: Sequence[str], minutes: float | None) -> int:
    """0: all is done, or as much as there was time for; 1: cells failed; 130: interrupted."""
    if minutes is not None and minutes <= 0:
        raise ConfigError(f"--minutes is {minutes:g}, expected more than 0")
    e = load_experiment(path, changes)
    cells = select(expand(e), only)
    runner = Runner(e, cells, Show(len(unique(cells))), minutes)
    outcome = runner.run()
    _tell(outcome, runner.store, cells, _again(path, changes, only))
    if outcome.stopped == "interrupted":
        return 130
    return 1 if outcome.failed else 0


def _tell(outcome: Outcome, store: Store, cells: Sequence[Cell], again: str) -> None:
    say = sys.stderr.write
    by_name = {cell.name: cell for cell in cells}
    for name, why in outcome.failed.items():
        say(f"failed: {name}: {why} (log: {store.log(by_name[name])})\n")
    failed = f", {len(outcome.failed)} failed" if outcome.failed else ""
    say(f"{len(outcome.done)} of {len(unique(cells))} runs done{failed}\n")
    if outcome.left:
        why = "stopped" if outcome.stopped == "interrupted" else "the time is over"
        say(f"logicdiag: {why} with {len(outcome.left)} to do; go on with: {again}\n")


def _again(path: str, changes: Sequence[str], only: Sequence[str]) -> str:
    words = ["logicdiag", "experiment", path, *changes]
    for pattern in only:
        words += ["--only", pattern]
    return shlex.join(words)


def list_cells(path: str, changes: Sequence[str], only: Sequence[str], console: Console) -> int:
    """Every cell: its name, how far it is, and its run folder."""
    e = load_experiment(path, changes)
    cells = select(expand(e), only)
    store = Store(e.out_folder)
    width = max(len(cell.name) for cell in cells)
    first: dict[str, str] = {}
    for cell in cells:
        owner = first.setdefault(cell.key, cell.name)
        state = store.state(cell, e.evaluate)
        if state == "begun":
            state = f"step {last_step(store.run(cell))} of {cell.config.train.steps}"
        shared = "" if owner == cell.name else f" (as {owner})"
        text = f"{cell.name:{width}}  {state:16}  {store.run(cell).name}{shared}"
        console.print(text, markup=False, soft_wrap=True)
    console.print(f"{len(cells)} cells, {len(first)} runs in {store.runs}", markup=False, soft_wrap=True)
    return 0


def make_table(path: str, changes: Sequence[str], with_plots: bool, prune: bool, console: Console) -> int:
    """Markdown, CSV and plots of everything that is known."""
    from .plots import draw
    from .table import make, pseudo_rows

    e = load_experiment(path, changes)
    cells = expand(e)
    table = make(e, cells, prune)
    measured = pseudo_rows(e, cells, prune)
    e.results_folder.mkdir(parents=True, exist_ok=True)
    name = f"{e.table}-{e.dataset}"
    with written_whole([e.results_folder / f"{name}.md"]) as [part]:
        part.write_text(table.markdown, "utf-8")
    console.print(table.markdown, markup=False, soft_wrap=True)
    written = [table.csv, e.results_folder / f"{name}.md", *([measured.csv] if measured.rows else [])]
    if with_plots:
        try:
            written += draw(e.results_folder, name, e, table, measured.rows)
        except ConfigError as missing:
            console.print(f"no plots: {missing}", markup=False, soft_wrap=True)
    console.print(f"written: {', '.join(map(str, written))}", markup=False, soft_wrap=True)
    return 0


def measure_experiment(
    path: str,
    changes: Sequence[str],
    only: Sequence[str],
    images: int | None,
    device: str | None,
    again: bool,
    console: Console,
    show: Progress,
) -> int:
    """Pseudo labels of all runs that are done; 1: there are some that could not be measured."""
    from .accuracy import measure_run, told
    from .worker import where

    e = load_experiment(path, changes)
    store = Store(e.out_folder)
    cells = [cell for cell in unique(select(expand(e), only)) if store.state(cell, e.evaluate) == "done"]
    if not cells:
        raise ConfigError(f"{path}: no run of it is done in {store.runs}; begin with: logicdiag experiment {path}")
    failed = 0
    for number, cell in enumerate(cells, 1):
        run, head = store.run(cell), f"{number}/{len(cells)} {cell.name}"
        try:
            moved = where(located(e, cell.config), Path(e.folder))
            found = measure_run(run, moved, images, device, again, show, forget=e.keep == "results")
        except LogicDiagError as error:
            failed += 1
            console.print(f"{head}: {error}", markup=False, soft_wrap=True)
        else:
            console.print(f"{head}: {told(found)}", markup=False, soft_wrap=True)
    return 1 if failed else 0
