"""From an experiment to its cells: one training run each, with a name made of what varies and a key made of all of it.

Two cells with the same settings have the same key, in whatever experiment they stand, and share one run.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..engine.check import check_settings
from ..engine.config import Config
from ..engine.load import build, parse_value, plain, put
from ..engine.run import MAY_MOVE
from ..errors import ConfigError, LogicDiagError, hint
from ..methods.build import METHODS
from ..methods.config import OWN
from .config import DATASETS, PARTS, Experiment, flat

COLUMNS = ("dataset", "method", "psi", "head", "labels", "seed", "miou_last", "miou_best")
"""Of every CSV file; what a table varies has columns beside them."""
MORE = (
    "miou_top",
    "miou_parents",
    "violations",
    "val_last",
    "val_best",
    "best_step",
    "split",
    "images",
    "chosen_on",
    "steps",
    "minutes",
    "cell",
    "key",
)
LISTS = ("labeled", "unlabeled", "val", "witness")
"""Settings of `data` that may name files, and say what is learned."""
ELSEWHERE = tuple(key for key in MAY_MOVE if key not in [f"data.{name}" for name in LISTS])
"""Settings that say where and how fast a run is done, and not what is learned."""
ADDED: dict[tuple[str, str], object] = {
    ("data", "witness"): None,
    ("data", "sampling"): "images",
    ("psi", "target"): "leaf",
}
"""Settings that came later, and what all runs had before: with it a run has the key that it had."""
KEY = 10
"""Hexadecimal digits of a key."""


@dataclass(frozen=True)
class Cell:
    """A training run of an experiment."""

    name: str
    """What varies, in characters that any file system takes."""
    options: dict[str, str]
    """Axis -> the value's name."""
    labels: int | None
    seed: int
    config: Config
    dataset: str
    place: int = 0
    """Of its row in the file."""

    @cached_property
    def key(self) -> str:
        return key_of(self.config, self.dataset)

    @property
    def run_name(self) -> str:
        """The run's folder; the same for the same settings, in whatever experiment."""
        c = self.config
        scenes = c.data.layout == "scenes"
        labeled = f"{c.data.scenes.labeled}" if scenes else c.data.labeled.rpartition("/")[2].removesuffix(".txt")
        parts = (c.method.name, psi_of(c), c.model.head, labeled, f"seed{c.train.seed}")
        return f"{'-'.join(slug(part) for part in parts)}-{self.key}"

    def columns(self) -> dict[str, Any]:
        """What a row of a CSV file says of the cell, before its results."""
        c = self.config
        return {
            "dataset": self.dataset,
            "method": c.method.name,
            "psi": psi_of(c),
            "head": c.model.head,
            "labels": self.labels,
            "seed": self.seed,
            **self.options,
            "cell": self.name,
            "key": self.key,
        }


def psi_of(config: Config) -> str:
    """What makes pseudo labels: nothing, where none are made."""
    method = METHODS.get(config.method.name)
    return config.psi.name if method is None or method.needs_unlabeled else "none"


def key_of(config: Config, dataset: str) -> str:
    """A fingerprint of everything that a run's weights depend on; where its data lie is not part of it."""
    settings = plain(config)
    for name in ELSEWHERE:
        part, _, key = name.partition(".")
        settings[part].pop(key)
    for key, method in OWN.items():
        if method != config.method.name:
            settings["method"].pop(key)
    if config.method.teacher_decay is None and (kind := METHODS.get(config.method.name)) is not None:
        decay = kind.decay(config.method, config.train.steps)
        settings["method"]["teacher_decay"] = None if decay == kind.default_decay else decay
    for (part, key), as_before in ADDED.items():
        if settings[part][key] == as_before:
            settings[part].pop(key)
    text = json.dumps([dataset, settings], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:KEY]


def expand(e: Experiment) -> list[Cell]:
    """All cells, in the order in which they are run. Every configuration is checked, but for its data."""
    blocks = list(_blocks(e))
    every = [(row, here) for block, here in blocks for row in _rows(block, e.source)]
    rows = {place: row for place, (row, here) in enumerate(every) if here}
    if not rows:
        raise ConfigError(f"{e.source}: no block of the grid is for {e.dataset}, expected it in the {DATASETS} of one")
    for axis in e.pool:
        known = {name for options, _ in rows.values() for name in options}
        if axis not in known:
            raise ConfigError(f"{e.source}: pool has {axis!r}, which is no axis of the grid{hint(axis, known)}")
    _check_labels(e, rows.values())
    cells = []
    for row, labels, seed in _ordered(rows, e):
        options, settings = rows[row]
        parts = [_part(axis, value) for axis, value in options.items()]
        parts += [] if labels is None else [f"labels{labels}"]
        name = "-".join([*parts, f"seed{seed}"])
        config = _config(e, settings, labels, seed, name)
        cells.append(Cell(name, options, labels, seed, config, e.dataset, row))
    _refuse_one_name(cells, e.source)
    return cells


def slug(text: object) -> str:
    """
    >>> slug("FixMatch, 0.95 (flat)"), slug([0.1, 0.3]), slug(None), slug("+ ST++")
    ('fixmatch-0.95-flat', '0.1-0.3', 'null', 'st++')
    """
    return re.sub(r"[^a-z0-9._=+]+", "-", shown(text).lower()).lstrip("-.+").rstrip("-.") or "x"


def shown(value: object) -> str:
    """A value as YAML has it.

    >>> shown(None), shown(True), shown(0.5), shown([0, 0.3])
    ('null', 'true', '0.5', '[0, 0.3]')
    """
    return value if isinstance(value, str) else json.dumps(value)


def _part(axis: str, value: str) -> str:
    return f"{slug(axis)}={slug(value)}" if "." in axis else slug(value)


# ---- rows ------------------------------------------------------------------------------------------------------------

Row = tuple[dict[str, str], dict[str, Any]]
"""Options by axis, and the settings that they are."""


def _blocks(e: Experiment) -> Iterator[tuple[dict[str, Any], bool]]:
    """Their axes, and whether they are for this data set."""
    for block in e.grid or [{}]:
        names = block.get(DATASETS)
        if names is not None and not (isinstance(names, list) and names and all(isinstance(n, str) for n in names)):
            raise ConfigError(f"{e.source}: {DATASETS} of a block is {names!r}, expected a list of names of data sets")
        axes = {axis: values for axis, values in block.items() if axis != DATASETS}
        yield axes, names is None or e.dataset in names


def _rows(block: dict[str, Any], source: str) -> Iterator[Row]:
    axes = [_axis(str(axis), values, source) for axis, values in block.items()]
    for chosen in itertools.product(*axes):
        options: dict[str, str] = {}
        settings: dict[str, Any] = {}
        for axis, option, values in chosen:
            options[axis] = option
            for key in values:
                if key in settings:
                    raise ConfigError(f"{source}: two axes of one block set {key}: {', '.join(map(str, block))}")
            settings |= values
        yield options, settings


def _axis(axis: str, values: Any, source: str) -> list[tuple[str, str, dict[str, Any]]]:
    if axis in COLUMNS or axis in MORE:
        raise ConfigError(f"{source}: an axis is called {axis!r}, which is a column of every table; name it otherwise")
    if isinstance(values, list) and values:
        if axis.partition(".")[0] not in PARTS or "." not in axis:
            near = hint(axis.partition(".")[0], PARTS)
            raise ConfigError(
                f"{source}: the axis {axis!r} has a list of values, so it must be a setting such as psi.q{near}; "
                "or give each option its settings"
            )
        if any(isinstance(value, dict) for value in values):
            raise ConfigError(f"{source}: the axis {axis!r} has a mapping among its values, expected plain values")
        return [(axis, shown(value), {axis: value}) for value in values]
    if isinstance(values, dict) and values:
        found = []
        for option, settings in values.items():
            if settings is not None and not isinstance(settings, dict):
                raise ConfigError(
                    f"{source}: the option {option!r} of {axis!r} is {settings!r}, expected settings such as psi.q: 1"
                )
            found.append((axis, shown(option), flat(settings or {})))
        return found
    raise ConfigError(f"{source}: the axis {axis!r} is {values!r}, expected options with their settings, or values")


def _ordered(rows: Iterable[int], e: Experiment) -> list[tuple[int, int | None, int]]:
    counts: list[int | None] = [None] if e.labels is None else [*sorted(e.labels)]
    every = list(itertools.product(rows, range(len(counts)), range(len(e.seeds))))
    if e.order == "labels":
        every.sort(key=lambda place: (place[1], place[2], place[0]))
    elif e.order == "seeds":
        every.sort(key=lambda place: (place[2], place[1], place[0]))
    return [(row, counts[labels], e.seeds[seed]) for row, labels, seed in every]


def _check_labels(e: Experiment, rows: Iterable[Row]) -> None:
    used = [e.settings, *(settings for _, settings in rows)]
    asked = any("{labels}" in json.dumps(settings) for settings in used)
    if e.labels is None and asked:
        raise ConfigError(f"{e.source}: a setting has {{labels}}, but labels are not given, such as labels: [12, 46]")
    if e.labels is not None and not asked:
        raise ConfigError(
            f"{e.source}: labels are {e.labels}, but no setting has {{labels}}, such as "
            "data.labeled: splits/labeled_{labels}_seed{seed}.txt"
        )


def _refuse_one_name(cells: Sequence[Cell], source: str) -> None:
    seen: dict[str, Cell] = {}
    for cell in cells:
        other = seen.setdefault(cell.name, cell)
        if other is not cell and (other.key != cell.key or other.options != cell.options):
            raise ConfigError(f"{source}: two cells are called {cell.name}; give their options different names")
        if other is not cell:
            raise ConfigError(f"{source}: the cell {cell.name} stands twice in the grid")


# ---- configurations --------------------------------------------------------------------------------------------------


def _config(e: Experiment, settings: dict[str, Any], labels: int | None, seed: int, name: str) -> Config:
    data = deepcopy(e.settings)
    for key, value in {**settings, "train.seed": seed}.items():
        put(data, key, deepcopy(value))
    where = f"{e.source}, cell {name}"
    config = build(Config, _filled(data, labels, seed), where)
    try:
        check_settings(config)
    except LogicDiagError as error:
        raise ConfigError(f"{where}: {error}") from None
    return config


def _filled(value: Any, labels: int | None, seed: int) -> Any:
    """{labels} and {seed} replaced; a text that then is a number is one."""
    if isinstance(value, dict):
        return {key: _filled(item, labels, seed) for key, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, labels, seed) for item in value]
    if not isinstance(value, str):
        return value
    filled = value.replace("{seed}", str(seed)).replace("{labels}", str(labels))
    return filled if filled == value else parse_value(filled, value)
