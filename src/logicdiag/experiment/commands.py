"""The experiment commands: read the file, of one experiment or of a suite, do the work, say what came of it."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from ..errors import ConfigError, LogicDiagError
from ..files import Progress, written_whole
from .config import Experiment
from .grid import expand
from .mps import advice
from .runner import Outcome, Runner
from .show import Show
from .store import last_step, split_name
from .suite import Suite, load_suite
from .task import Task, select, unique

NOTHING = "nothing is missing: the tables have a row of every cell"


def run_experiment(
    path: str, changes: Sequence[str], only: Sequence[str], minutes: float | None, missing: bool = False
) -> int:
    """0: all is done, or as much as there was time for; 1: cells failed; 130: interrupted.

    `missing`: only cells that no table has a row of, so that what another machine did is not done again.
    """
    if minutes is not None and minutes <= 0:
        raise ConfigError(f"--minutes is {minutes:g}, expected more than 0")
    suite = load_suite(path, changes)
    tasks = _chosen(suite, only, missing)
    if not tasks:
        sys.stderr.write(f"{NOTHING}\n")
        return 0
    tasks = unique(tasks)
    show = Show()
    if (first := advice(suite.jobs)) is not None:
        show.say(first)
    outcome = Runner(tasks, show, suite.jobs, suite.devices, minutes).run()
    _tell(outcome, tasks, _again(path, changes, only, missing))
    if outcome.stopped == "interrupted":
        return 130
    return 1 if outcome.failed else 0


def _chosen(suite: Suite, only: Sequence[str], missing: bool) -> list[Task]:
    tasks = select(suite.tasks(), only)
    if not missing:
        return tasks
    from .table import reported

    # in whatever table: they share runs
    there = {(split_name(e.evaluate), key) for e in suite.experiments for key in reported(e)}
    return [task for task in tasks if (split_name(task.experiment.evaluate), task.cell.key) not in there]


def _tell(outcome: Outcome, tasks: Sequence[Task], again: str) -> None:
    say = sys.stderr.write
    by_name = {task.name: task for task in tasks}
    for name, why in outcome.failed.items():
        say(f"failed: {name}: {why} (log: {by_name[name].log})\n")
    failed = f", {len(outcome.failed)} failed" if outcome.failed else ""
    say(f"{len(outcome.done)} of {_counted(len(tasks), 'run')} done{failed}\n")
    if outcome.left:
        why = "stopped" if outcome.stopped == "interrupted" else "the time is over"
        say(f"logicdiag: {why} with {len(outcome.left)} to do; go on with: {again}\n")


def _again(path: str, changes: Sequence[str], only: Sequence[str], missing: bool) -> str:
    words = ["logicdiag", "experiment", path, *changes]
    for pattern in only:
        words += ["--only", pattern]
    return shlex.join([*words, *["--missing"] * missing])


def list_cells(path: str, changes: Sequence[str], only: Sequence[str], console: Console, missing: bool = False) -> int:
    """Every cell: its name, how far it is, and its run folder."""
    suite = load_suite(path, changes)
    tasks = _chosen(suite, only, missing)
    if not tasks:
        _say(console, NOTHING)
        return 0
    width = max(len(task.name) for task in tasks)
    first: dict[object, str] = {}
    for task in tasks:
        owner, state, run = first.setdefault(task.identity, task.name), task.state(), task.run
        if state == "begun":
            state = f"step {last_step(run)} of {task.steps}"
        shared = "" if owner == task.name else f" (as {owner})"
        _say(console, f"{task.name:{width}}  {state:16}  {run.name}{shared}")
    head = "" if suite.alone else f"{suite.title}: "
    folders = dict.fromkeys(str(task.store.runs) for task in tasks)
    _say(console, f"{head}{_counted(len(tasks), 'cell')}, {_counted(len(first), 'run')} in {', '.join(folders)}")
    return 0


def make_table(path: str, changes: Sequence[str], with_plots: bool, prune: bool, console: Console) -> int:
    """Markdown, CSV and plots of everything that is known; then the suite's page."""
    from .page import Page

    suite = load_suite(path, changes)
    # The page is of the suite as its file has it, whatever part of it is made now; its mistakes come before any work.
    page = Page(suite.page, load_suite(path)) if suite.page else None
    for e in suite.experiments:
        _make_one(e, suite.experiments, with_plots, prune, console)
    if page is None:
        return 0
    if page.is_empty:
        _say(console, f"{page.path}: left as it is, no run is known")
        return 0
    with written_whole([page.path]) as [part]:
        part.write_text(page.text(), "utf-8")
    _say(console, f"written: {page.path}")
    return 0


def _make_one(e: Experiment, others: Sequence[Experiment], with_plots: bool, prune: bool, console: Console) -> None:
    from .plots import draw
    from .table import class_rows, make, pseudo_rows

    cells = expand(e)
    table = make(e, cells, prune, others)
    measured, by_class = pseudo_rows(e, cells, prune, others), class_rows(e, cells, prune, others)
    if table.is_empty:
        _say(console, f"{e.name}: nothing to show yet, no run is done")
        return
    e.results_folder.mkdir(parents=True, exist_ok=True)
    name = f"{e.table}-{e.dataset}"
    with written_whole([e.results_folder / f"{name}.md"]) as [part]:
        part.write_text(table.markdown, "utf-8")
    _say(console, table.markdown)
    written = [table.csv, e.results_folder / f"{name}.md"]
    written += [merged.csv for merged in (measured, by_class) if merged.rows]
    if with_plots:
        try:
            written += draw(e.results_folder, name, e, table, measured.rows)
        except ConfigError as missing:
            _say(console, f"no plots: {missing}")
    _say(console, f"written: {', '.join(map(str, written))}")


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

    every = select(load_suite(path, changes).tasks(), only)
    done = [task for task in every if task.state() == "done"]
    if not done:
        folders = ", ".join(dict.fromkeys(str(task.store.runs) for task in every))
        raise ConfigError(f"{path}: no run of it is done in {folders}; begin with: logicdiag experiment {path}")
    for name in dict.fromkeys(task.experiment.name for task in every):
        if not any(task.experiment.name == name for task in done):
            _say(console, f"{name}: nothing to measure yet, no run is done")
    failed, runs = 0, unique(done)
    for number, task in enumerate(runs, 1):
        head = f"{number}/{len(runs)} {task.name}"
        try:
            moved, forget = where(task.config, Path(task.experiment.folder)), task.experiment.keep == "results"
            found = measure_run(task.run, moved, images, device, again, show, forget)
        except LogicDiagError as error:
            failed += 1
            _say(console, f"{head}: {error}")
        else:
            _say(console, f"{head}: {told(found)}")
    return 1 if failed else 0


def _counted(count: int, what: str) -> str:
    """
    >>> _counted(1, "run"), _counted(2, "run")
    ('1 run', '2 runs')
    """
    return f"{count} {what}{'s' * (count != 1)}"


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, soft_wrap=True)
