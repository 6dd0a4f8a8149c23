"""A task: a cell together with the experiment that it stands in and the folder that its run is in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path

from ..engine.config import Config
from ..errors import ConfigError, hint
from .config import Experiment
from .grid import Cell
from .store import Store


@dataclass(frozen=True, eq=False)
class Task:
    """What a runner does: the run of a cell, to its end."""

    name: str
    """The cell's; with its data set and table before it where there are several ("camvid/methods/fixmatch-seed0")."""
    cell: Cell
    experiment: Experiment
    store: Store

    @property
    def identity(self) -> tuple[Path, str]:
        """Tasks with the same one share a run."""
        return self.store.out, self.cell.key

    @property
    def run(self) -> Path:
        return self.store.run(self.cell)

    @property
    def log(self) -> Path:
        return self.store.log(self.cell)

    @property
    def steps(self) -> int:
        return self.cell.config.train.steps

    @property
    def config(self) -> Config:
        """The cell's, with the folder of the data by its whole path, if it is there."""
        config = self.cell.config
        root = config.data.root
        for base in (Path(self.experiment.folder), Path()):
            if root and (base / root).is_dir():
                root = str((base / root).absolute())
        return replace(config, data=replace(config.data, root=root))

    def state(self) -> str:
        """done, failed, begun or to do."""
        return self.store.state(self.cell, self.experiment.evaluate)


def select(tasks: Sequence[Task], patterns: Iterable[str]) -> list[Task]:
    """The tasks that one of the patterns names: with * and ?, or a part of the name.

    All of them where there is no pattern.
    """
    patterns = list(patterns)
    taken = [task for task in tasks if not patterns or any(_matches(task.name, p) for p in patterns)]
    if not taken:
        shown = " or ".join(patterns)
        names = [task.name for task in tasks]
        near = hint(patterns[0], names) if patterns else ""
        example = f"; there are {len(names)}, such as {names[0]}" if names and not near else ""
        raise ConfigError(f"no cell is named {shown}{near}{example}")
    return taken


def unique(tasks: Iterable[Task]) -> list[Task]:
    """The first task of each run; where tables report a run on several lists, the first of each list."""
    first: dict[object, Task] = {}
    for task in tasks:
        first.setdefault((task.identity, task.experiment.evaluate), task)
    return list(first.values())


def _matches(name: str, pattern: str) -> bool:
    return fnmatch(name, pattern) if any(c in pattern for c in "*?[") else pattern in name
