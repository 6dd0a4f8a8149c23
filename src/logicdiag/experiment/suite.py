"""A suite: several experiments, each on several data sets, whose cells are run by one pool of processes.

A single experiment is a suite of one, so that whatever works on suites works on it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from ..engine.load import build, put_override, read_settings
from ..errors import ConfigError, hint
from .config import DATASETS, Experiment, load_experiment
from .grid import expand
from .store import Store
from .task import Task

TABLES = "tables"
"""The key that a suite is recognised by."""


@dataclass
class _Keys:
    """Of a suite's file."""

    title: str = ""
    """The file's name if empty."""
    datasets: list[str] | None = None
    """Every table is made for each of them; null: each for its own `dataset`."""
    tables: list[str] = field(default_factory=list)
    """Experiment files, from the folder of this one."""
    jobs: int | None = None
    """Runs side by side, in all; null: as in the table that has most."""
    devices: list[str] = field(default_factory=list)
    """That runs are dealt to; empty: those of the tables."""
    page: str | None = None
    """A page of Markdown that `table` puts the tables in, from the folder of this file."""
    names: dict[str, Any] = field(default_factory=dict)
    """What the page calls data sets, where it is another name."""


OWN = tuple(f.name for f in fields(_Keys))


@dataclass(frozen=True)
class Suite:
    """What is run together, and the pool that does it."""

    title: str
    experiments: list[Experiment]
    jobs: int
    devices: list[str]
    source: str
    """The file."""
    alone: bool = False
    """Whether it is of a single experiment's file."""
    page: Path | None = None
    names: dict[str, Any] = field(default_factory=dict)

    def tasks(self) -> list[Task]:
        """All cells, in the order in which they are run: an experiment by itself as its `order` says; in a suite the
        fewest labels of each table first, then table by table, seed by seed, row by row, data sets by turns.
        """
        stores: dict[Path, Store] = {}
        tables = list(dict.fromkeys(e.source for e in self.experiments))
        datasets = list(dict.fromkeys(e.dataset for e in self.experiments))
        placed = []
        for e in self.experiments:
            store = stores.setdefault(e.out_folder.resolve(), Store(e.out_folder))
            for cell in expand(e):
                task = Task(cell.name if self.alone else f"{e.name}/{cell.name}", cell, e, store)
                rank = 0 if e.labels is None or cell.labels is None else e.labels.index(cell.labels)
                table, dataset = tables.index(e.source), datasets.index(e.dataset)
                placed.append(((rank, table, e.seeds.index(cell.seed), cell.place, dataset), task))
        if not self.alone:
            placed.sort(key=lambda pair: pair[0])
        return [task for _, task in placed]


def load_suite(path: str | Path, changes: Sequence[str] = ()) -> Suite:
    """A suite's file, or an experiment's. Changes are of the suite (jobs=8, datasets=[camvid]), or of every table."""
    path = Path(path)
    data = read_settings(path)
    if TABLES not in data:
        e = load_experiment(path, changes)
        return Suite(e.title, [e], e.jobs, e.devices, str(path), alone=True)
    own = [change for change in changes if _key(change) in OWN]
    for change in own:
        put_override(data, change)
    keys = build(_Keys, data, str(path))
    _check(keys, path)
    experiments = _experiments(keys, path, [change for change in changes if change not in own])
    _check_blocks(experiments, [*(data.get("datasets") or []), *(read_settings(path).get("datasets") or [])])
    devices = keys.devices or list(dict.fromkeys(device for e in experiments for device in e.devices))
    jobs = keys.jobs or max(e.jobs for e in experiments)
    page = Path(os.path.normpath(path.parent / keys.page)) if keys.page else None
    return Suite(keys.title or path.stem, experiments, jobs, devices, str(path), page=page, names=keys.names)


def _experiments(keys: _Keys, path: Path, changes: Sequence[str]) -> list[Experiment]:
    """Table by table, each for every data set."""
    for change in changes:
        if keys.datasets is not None and _key(change) == "dataset":
            instead = f"datasets=[{change.partition('=')[2]}]"
            raise ConfigError(f"{change} has no effect: {path} lists datasets itself; say {instead} instead")
    found: dict[str, Experiment] = {}
    for table in keys.tables:
        file = path.parent / table
        if not file.is_file():
            near = hint(file.name, [other.name for other in file.parent.glob("*.yaml")])
            raise ConfigError(f"{path}: tables has {table!r}, but there is no file {file}{near}")
        if TABLES in read_settings(file):
            raise ConfigError(f"{path}: tables has {table!r}, which has tables itself, expected an experiment's file")
        for dataset in [None] if keys.datasets is None else keys.datasets:
            chosen = [] if dataset is None else [f"dataset={json.dumps(dataset)}"]
            e = load_experiment(file, [*chosen, *changes])
            other = found.setdefault(e.name, e)
            if other is not e:
                both = f"{other.source} and {e.source}"
                raise ConfigError(f"{path}: two tables are called {e.name}, of {both}; give one another `table`")
    return list(found.values())


def _check_blocks(experiments: Sequence[Experiment], listed: Sequence[Any]) -> None:
    """A block for a data set that is none of the suite's would be left out without a word."""
    known = list(dict.fromkeys([*map(str, listed), *(e.dataset for e in experiments)]))
    for e in experiments:
        for names in (block.get(DATASETS) for block in e.grid):
            for name in names if isinstance(names, list) else ():
                if name not in known:
                    what = f"{e.source}: {DATASETS} of a block has {name!r}"
                    raise ConfigError(f"{what}, which is no data set of the suite{hint(str(name), known)}")


def _check(keys: _Keys, path: Path) -> None:
    for key, values, what in (
        ("tables", keys.tables, "different experiment files"),
        ("datasets", keys.datasets, "different names of data sets"),
    ):
        if values is not None and (not values or len(set(values)) < len(values)):
            raise ConfigError(f"{path}: {key} is {values}, expected {what}")
    if keys.jobs is not None and keys.jobs < 1:
        raise ConfigError(f"{path}: jobs is {keys.jobs}, expected a whole number of at least 1")


def _key(change: str) -> str:
    return change.partition("=")[0]
