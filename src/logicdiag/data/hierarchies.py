"""Which hierarchy a data set gets: its own or another, as it is, with its leaves permuted, or without groups."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ..errors import DataError, choose, hint
from ..logic.hierarchy import Hierarchy
from .config import DataConfig
from .dataset import IGNORE
from .layouts import Layout, fold, restricted

KINDS = ("official", "random", "none")


def hierarchy_of(config: DataConfig, layout: Layout, places: list[Path]) -> Hierarchy:
    """The hierarchy of a data set on disk, as the configuration wants it."""
    classes = layout.class_names()
    given = config.hierarchy
    if given is None:
        hierarchy = layout.own_hierarchy()
    elif isinstance(given, str):
        found = [place / given for place in places if (place / given).is_file()]
        whole = Hierarchy.load(found[0] if found else given)
        _refuse_unknown(classes, whole, f"data.hierarchy is {given!r}")
        hierarchy = restricted(whole, classes)
    else:
        hierarchy = Hierarchy.from_dict(given)
    _fit(classes, hierarchy, layout)
    return of_kind(hierarchy, config.hierarchy_kind, config.hierarchy_seed)


def of_kind(hierarchy: Hierarchy, kind: str, seed: int) -> Hierarchy:
    """`official`: as it is; `random`: the same tree, its leaves permuted; `none`: the leaves alone.

    >>> h = Hierarchy.from_dict({"animal": ["bird", "cat"], "sky": None})
    >>> of_kind(h, "none", 0).names, of_kind(h, "random", 3).to_dict()
    (('bird', 'cat', 'sky'), {'animal': {'sky': None, 'cat': None}, 'bird': None})
    """
    choose("data.hierarchy_kind", kind, KINDS)
    if kind == "none":
        return Hierarchy.from_dict(list(hierarchy.leaves), hierarchy.title)
    if kind == "random":
        names = list(hierarchy.names)
        order = np.random.default_rng(seed).permutation(len(hierarchy.leaves))
        for place, leaf in zip(hierarchy.leaf_indices, order, strict=True):
            names[place] = hierarchy.leaves[leaf]
        return Hierarchy(tuple(names), hierarchy.parents, hierarchy.title)
    return hierarchy


def _refuse_unknown(classes: list[str], hierarchy: Hierarchy, where: str) -> None:
    """A class that is no leaf."""
    leaves = {fold(leaf): leaf for leaf in hierarchy.leaves}
    for name in classes:
        if fold(name) not in leaves:
            group = fold(name) in {fold(n) for n in hierarchy.names}
            why = f"a group of {hierarchy.title} and no leaf" if group else f"no leaf of {hierarchy.title}"
            raise DataError(f"{where}: the class {name!r} is {why}{'' if group else hint(name, leaves.values())}")


def _fit(classes: list[str], hierarchy: Hierarchy, layout: Layout) -> None:
    """Every class is a leaf, and every leaf is a class."""
    _refuse_unknown(classes, hierarchy, str(layout.root))
    leaves = {fold(leaf): leaf for leaf in hierarchy.leaves}
    known = {fold(name) for name in classes}
    for folded, leaf in leaves.items():
        if folded not in known:
            raise DataError(
                f"{layout.root}: the leaf {leaf!r} of {hierarchy.title} is no class of the masks"
                f"{hint(leaf, classes)}; no pixel would ever show it"
            )
    if len(known) < len(classes):
        twice = next(name for i, name in enumerate(classes) if fold(name) in map(fold, classes[:i]))
        raise DataError(f"{layout.root}: the class {twice!r} is there twice, in two spellings")
    if len(leaves) > IGNORE:
        raise DataError(f"{layout.root}: {len(leaves)} classes, and masks of 8 bits have room for {IGNORE}")
