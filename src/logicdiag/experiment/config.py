"""An experiment file: training settings, what varies, and how the runs are done. Typed, like a training configuration.

Parts of a training configuration (`data`, `model`, ...) stand in it as they do there, and hold for every run; `base` is
a file that is read first, a training configuration or one with keys of an experiment, too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..engine.config import Config
from ..engine.load import build, put_override, read_settings
from ..errors import ConfigError, choose

ORDERS = {
    "labels": "the fewest labels first, then seed by seed",
    "seeds": "all of the first seed, then of the next",
    "file": "row by row, as in the file",
}
KEEP = {
    "all": "everything",
    "networks": "no checkpoint of a finished run, but its networks",
    "results": "numbers alone: neither checkpoint nor networks of a finished run, nor snapshots that were measured",
}
PARTS = tuple(f.name for f in dataclasses.fields(Config))
"""Of a training configuration."""
DATASET = "{dataset}"
DATASETS = "datasets"
"""The key of a block that is for some data sets alone, and no axis."""


@dataclass
class Experiment:
    """A grid of training runs and the table that is made of them."""

    title: str = ""
    """Stands above the table; the file's name if empty."""
    table: str = ""
    """What the files of the table are called; the experiment file's name if empty."""
    dataset: str = ""
    """The data set's name in tables and in the keys of runs, wherever its folder is; the folder's name if empty.
    {dataset} is filled in in base, out, results, title and data.root.
    """
    base: str | dict[str, Any] | None = None
    """A file that is read first, from the folder of this one (or the keys themselves)."""
    out: str = ""
    """Where runs and logs go; runs/ and the data set's name if empty. Experiments with one `out` share equal runs."""
    results: str = ""
    """Where tables and plots go; `out`/tables if empty."""
    labels: list[int] | None = None
    """Numbers of labelled images: {labels} is filled in, such as in data.labeled."""
    fewest: int | None = None
    """Only so many of `labels`, the smallest; null: all."""
    seeds: list[int] = field(default_factory=lambda: [0])
    """Of train.seed; {seed} is filled in, too."""
    grid: list[dict[str, Any]] = field(default_factory=list)
    """Blocks of rows. A block has axes and every combination of their values; an axis is a name and its options, each
    with settings (`rules: {none: {psi.families: ""}, C: {psi.families: C}}`), or a setting and its values
    (`psi.q: [1, 5]`). With `datasets: [NAME, ...]` a block is for these alone.
    """
    pool: list[str] = field(default_factory=list)
    """Axes that a mean is taken over, as over seeds."""
    reference: str | None = None
    """A row of the table that all others are also compared with, seed by seed."""
    evaluate: str | None = None
    """The split, or list, that is reported; null: data.val. The best checkpoint is chosen on data.val."""
    order: str = "labels"
    """labels (the fewest first), seeds (all of the first seed, then of the next) or file (row by row)."""
    jobs: int = 1
    """Runs side by side."""
    devices: list[str] = field(default_factory=list)
    """Such as [cuda:0, cuda:1]: runs are dealt to them; empty: train.device."""
    snapshots: int | list[float] = 0
    """Moments at which a run keeps its teacher, to measure pseudo labels later: how many, or shares of the run."""
    keep: str = "all"
    """all, networks (no checkpoints of finished runs) or results (no weights of finished runs)."""

    data: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    method: dict[str, Any] = field(default_factory=dict)
    psi: dict[str, Any] = field(default_factory=dict)
    loss: dict[str, Any] = field(default_factory=dict)
    optimizer: dict[str, Any] = field(default_factory=dict)
    train: dict[str, Any] = field(default_factory=dict)
    inference: dict[str, Any] = field(default_factory=dict)

    source: str = field(default="", init=False)
    """The file."""
    folder: str = field(default="", init=False)
    """Where relative paths of the training settings start."""

    @property
    def name(self) -> str:
        """Of the table, among those of other data sets."""
        return f"{self.dataset}/{self.table}"

    @property
    def settings(self) -> dict[str, dict[str, Any]]:
        """The training settings of every run, before the grid."""
        return {part: getattr(self, part) for part in PARTS if getattr(self, part)}

    @property
    def out_folder(self) -> Path:
        return Path(self.out)

    @property
    def results_folder(self) -> Path:
        return Path(self.results) if self.results else self.out_folder / "tables"

    def moments(self, steps: int) -> tuple[int, ...]:
        """The steps after which the teacher is kept.

        >>> Experiment(snapshots=4).moments(10), Experiment(snapshots=[0.1, 1]).moments(50)
        ((2, 5, 8, 10), (5, 50))
        """
        if isinstance(self.snapshots, int):
            shares = [i / self.snapshots for i in range(1, self.snapshots + 1)]
        else:
            shares = self.snapshots
        return tuple(sorted({min(steps, max(1, round(share * steps))) for share in shares}))


def load_experiment(path: str | Path, changes: Sequence[str] = ()) -> Experiment:
    """An experiment file with `key.key=value` changes of the experiment (jobs=8) or of all runs (data.root=...)."""
    path = Path(path)
    data = read_settings(path)
    for change in changes:
        put_override(data, change)
    folder = path.parent
    if data.get("base") is not None:
        data, folder = _with_base(data, path)
    experiment = build(Experiment, data, str(path))
    experiment.source, experiment.folder = str(path), str(folder)
    experiment.title = experiment.title or path.stem
    experiment.table = experiment.table or path.stem
    experiment.dataset = experiment.dataset or _named_after(experiment, path)
    experiment.out = experiment.out or f"runs/{experiment.dataset}"
    for key in ("out", "results", "title"):
        setattr(experiment, key, getattr(experiment, key).replace(DATASET, experiment.dataset))
    if isinstance(root := experiment.data.get("root"), str):
        experiment.data["root"] = root.replace(DATASET, experiment.dataset)
    _check(experiment, path)
    if experiment.labels is not None:
        experiment.labels = sorted(experiment.labels)[: experiment.fewest]
    _refuse_varied(experiment, changes, path)
    return experiment


def _with_base(data: dict[str, Any], path: Path, above: tuple[Path, ...] = ()) -> tuple[dict[str, Any], Path]:
    """The keys of `base`, which may have a base itself, under those of the file; and the folder that relative paths
    start at.
    """
    base = data["base"]
    if isinstance(base, dict):
        return _merged(base, data), path.parent
    if not isinstance(base, str):
        raise ConfigError(f"{path}: base is {base!r}, expected a file, or the settings themselves")
    if DATASET in base:
        if not isinstance(data.get("dataset"), str):
            raise ConfigError(f"{path}: base is {base!r}, so dataset must be given, such as dataset=NAME")
        base = base.replace(DATASET, data["dataset"])
    file = path.parent / base
    file = file if file.is_file() or not Path(base).is_file() else Path(base)
    above = (*above, path.resolve())
    if file.resolve() in above:
        raise ConfigError(f"{path}: base is {base!r}, of which this file is a base itself")
    below = read_settings(file)
    if below.get("base") is not None:
        below = _with_base({"dataset": data.get("dataset"), **below}, file, above)[0]
    return _merged(below, data), file.parent


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Mappings are merged key by key; anything else is taken from above."""
    out = dict(below)
    for key, value in above.items():
        under = out.get(key)
        out[key] = _merged(under, value) if isinstance(under, dict) and isinstance(value, dict) else value
    return out


def _named_after(experiment: Experiment, path: Path) -> str:
    root = experiment.data.get("root")
    if DATASET in str(root):
        raise ConfigError(f"{path}: data.root is {root!r}, so dataset must be given, such as dataset=NAME")
    return Path(str(root)).name if root else str(experiment.data.get("layout", "data"))


def _check(e: Experiment, path: Path) -> None:
    choose(f"{path}: order", e.order, ORDERS)
    choose(f"{path}: keep", e.keep, KEEP)
    if e.jobs < 1:
        raise ConfigError(f"{path}: jobs is {e.jobs}, expected a whole number of at least 1")
    for key, values, least in (("seeds", e.seeds, 0), ("labels", e.labels or [1], 1)):
        if not values or min(values) < least or len(set(values)) < len(values):
            raise ConfigError(f"{path}: {key} is {values}, expected different whole numbers of at least {least}")
    if e.fewest is not None and e.fewest < 1:
        raise ConfigError(f"{path}: fewest is {e.fewest}, expected a whole number of at least 1, or null")
    shares = [e.snapshots] if isinstance(e.snapshots, int) else e.snapshots
    wrong = shares[0] < 0 if isinstance(e.snapshots, int) else any(not 0 < share <= 1 for share in shares)
    if wrong:
        raise ConfigError(f"{path}: snapshots is {e.snapshots}, expected how many, or shares of the run from 0 to 1")
    for key in ("table", "dataset"):
        if not _is_name(name := getattr(e, key)):
            raise ConfigError(f"{path}: {key} is {name!r}, expected a name for files: letters, digits, ., _ and -")


def _is_name(text: str) -> bool:
    return bool(text) and text[0] not in ".-" and all(c.isalnum() or c in "._-" for c in text)


def _refuse_varied(e: Experiment, changes: Iterable[str], path: Path) -> None:
    """What the grid sets, a change of all runs cannot."""
    varied = {"train.seed", *keys_of_grid(e)}
    for change in changes:
        key = change.partition("=")[0]
        if key in varied:
            told = "seeds=[...]" if key == "train.seed" else "the grid"
            raise ConfigError(f"{change} has no effect: {path} varies {key} itself; change {told} instead")


def keys_of_grid(e: Experiment) -> set[str]:
    keys: set[str] = set()
    for block in e.grid:
        for axis, values in block.items():
            if axis == DATASETS:
                continue
            if isinstance(values, list):
                keys.add(str(axis))
            elif isinstance(values, dict):
                for settings in values.values():
                    keys.update(flat(settings) if isinstance(settings, dict) else ())
    return keys


def flat(settings: dict[str, Any], above: str = "") -> dict[str, Any]:
    """Nested settings with dotted keys.

    >>> flat({"psi": {"q": 1}, "model.head": "flat"})
    {'psi.q': 1, 'model.head': 'flat'}
    """
    out: dict[str, Any] = {}
    for key, value in settings.items():
        name = f"{above}{key}"
        if isinstance(value, dict) and value and name not in ("data.hierarchy",):
            out |= flat(value, f"{name}.")
        else:
            out[name] = value
    return out
