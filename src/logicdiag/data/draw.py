"""Labelled lists drawn at random, such that every common class occurs: for experiments, and to hold images out."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..errors import OptionError
from ..files import Progress
from .config import DataConfig
from .dataset import IGNORE, Masked
from .open import open_split

COMMON = 0.02
"""A class is common if it occurs in this share of the images."""


@dataclass(frozen=True)
class Drawn:
    names: tuple[str, ...]
    of: int
    """Images that there were to draw from."""
    missing: tuple[str, ...]
    """Classes that occur among them, but in none that was drawn."""


def draw_list(
    config: DataConfig,
    count: int,
    seed: int,
    of: str | None = None,
    without: Sequence[str] = (),
    base: Path | None = None,
    progress: Progress | None = None,
) -> Drawn:
    """`count` images of a split or list (`of`; data.labeled by default) that are in none of the lists `without`."""
    pool = open_split(config, base, of or config.labeled)
    left_out = {item.name for other in without for item in open_split(config, base, other).items}
    items = [item for item in pool.items if item.name not in left_out]
    if not 1 <= count <= len(items):
        raise OptionError(f"--count is {count}, expected 1 to {len(items)}, the images that there are to draw from")
    leaves = pool.hierarchy.leaves
    shown = {}
    for number, item in enumerate(items, 1):
        shown[item.name] = _classes(item)
        if progress:
            progress("masks", number, len(items))
    names = draw(shown, count, seed)
    there = set().union(*shown.values())
    missing = there - set().union(*(shown[name] for name in names))
    return Drawn(tuple(names), len(items), tuple(leaves[leaf] for leaf in sorted(missing)))


def draw(shown: Mapping[str, Collection[int]], count: int, seed: int) -> list[str]:
    """Of images by the classes that they show, `count`, in their order: first one for each common class that is still
    missing, the rarest first, then any.

    >>> draw({"a": [0], "b": [0], "c": [0], "d": [0, 1]}, 2, seed=0)
    ['b', 'd']
    """
    order = random.Random(seed).sample(sorted(shown), len(shown))
    often = {leaf: sum(leaf in classes for classes in shown.values()) for leaf in set().union(*shown.values())}
    common = [
        leaf for leaf in sorted(often, key=lambda leaf: (often[leaf], leaf)) if often[leaf] >= COMMON * len(shown)
    ]
    taken: list[str] = []
    for leaf in common:
        if len(taken) < count and not any(leaf in shown[name] for name in taken):
            taken.append(next(name for name in order if leaf in shown[name]))
    taken += [name for name in order if name not in taken][: count - len(taken)]
    wanted = set(taken)
    return [name for name in shown if name in wanted]


def _classes(item: Masked) -> frozenset[int]:
    return frozenset(np.unique(item.mask()).tolist()) - {IGNORE}
