"""What a data set is made of: photos, photos with a mask, and where the lists of them come from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError
from ..logic.hierarchy import Hierarchy

Item = TypeVar("Item")

IGNORE = 255
"""In masks: a pixel that counts nowhere."""
MAX_ID = (1 << 16) - 1
"""Of masks that hold indices; larger ids are colours."""


@dataclass(frozen=True)
class Photo:
    """An image and nothing else: it has no mask, so nothing can open one.

    `source` makes the array when it is called. It is sent to worker processes: a class of a module, or a `partial`,
    not a lambda.
    """

    name: str
    source: Callable[[], NDArray[np.uint8]]
    heard: tuple[float, ...] | None = field(default=None, kw_only=True)
    """What a witness says of it (`data/witness.py`); None: nothing."""

    def image(self) -> NDArray[np.uint8]:
        """RGB, (height, width, 3)."""
        return self.source()

    @property
    def where(self) -> str:
        """The file, for messages; the name if there is none."""
        return str(getattr(self.source, "path", self.name))


@dataclass(frozen=True)
class Masked(Photo):
    """An image with a mask; `labels` makes the mask when it is called."""

    labels: Callable[[], NDArray[np.uint8]]

    def mask(self) -> NDArray[np.uint8]:
        """Indices of the hierarchy's leaves, (height, width); `IGNORE` where a pixel counts nowhere."""
        return self.labels()

    def bare(self) -> Photo:
        """The same image without its mask."""
        return Photo(self.name, self.source)


@dataclass(frozen=True)
class ListRecord:
    """Where a list of images comes from."""

    source: str
    """The file, or the rule, that gave it."""
    count: int
    fingerprint: str
    """SHA-256 of the sorted names: equal lists have one fingerprint, whatever format they are written in."""
    known: str | None = None
    """The name of a published list with the same content."""
    order: str = ""
    """SHA-256 of the full names in their order, which training depends on; empty in records that have none."""


@dataclass(frozen=True)
class Dataset:
    """Labelled, unlabelled and evaluation images under one hierarchy."""

    name: str
    hierarchy: Hierarchy
    labeled: tuple[Masked, ...]
    unlabeled: tuple[Photo, ...]
    val: tuple[Masked, ...]
    lists: Mapping[str, ListRecord]
    reader: Callable[[str], tuple[Masked, ...]] = field(repr=False, compare=False)
    witness: tuple[str, ...] = ()
    """Concepts that a witness tells of unlabelled images."""

    def split(self, name: str) -> tuple[Masked, ...]:
        """Any split of the data set, or a list file, to evaluate on; what `data.val` names is `val`, not this."""
        return self.reader(name)

    def __repr__(self) -> str:
        counts = f"{len(self.labeled)} labelled, {len(self.unlabeled)} unlabelled, {len(self.val)} val"
        return f"Dataset({self.name!r}, {counts})"


@dataclass(frozen=True)
class Split:
    """The images of one list, to evaluate on, and where the list comes from."""

    hierarchy: Hierarchy
    items: tuple[Masked, ...]
    record: ListRecord
    witness: tuple[str, ...] = ()
    """Concepts that a witness tells of them."""


def evenly(items: Sequence[Item], count: int | None) -> Sequence[Item]:
    """So many of them, from the first on; None: all."""
    if count is None or count >= len(items):
        return items
    return [items[i * len(items) // count] for i in range(count)]


class LeafTable:
    """From the ids of a mask to indices of the hierarchy's leaves.

    >>> h = Hierarchy.from_dict({"animal": ["bird", "cat"], "sky": None})
    >>> LeafTable({0: "sky", 7: "cat", 9: None}, h).apply(np.array([[0, 7, 9]]), "x.png")
    array([[  2,   1, 255]], dtype=uint8)
    """

    def __init__(self, classes: Mapping[int, str | None], hierarchy: Hierarchy) -> None:
        index = {name: i for i, name in enumerate(hierarchy.leaves)}
        self.classes = dict(classes)
        self._ids = np.array(sorted(classes), np.int32)
        names = [classes[number] for number in sorted(classes)]
        self._leaves = np.array([IGNORE if name is None else index[name] for name in names], np.uint8)

    def apply(self, ids: NDArray[Any], where: str) -> NDArray[np.uint8]:
        leaves, right = self._look_up(ids)
        if not right.all():
            raise DataError(f"{where}: {self.describe_wrong(ids)}")
        return leaves

    def tolerant(self, ids: NDArray[Any]) -> NDArray[np.uint8]:
        """As `apply`, with `IGNORE` for ids that are wrong."""
        leaves, right = self._look_up(ids)
        return np.where(right, leaves, np.uint8(IGNORE))

    def _look_up(self, ids: NDArray[Any]) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
        """Leaves, and where they can be trusted."""
        if ids.dtype == np.uint8:
            numbers = np.arange(256)
            places = np.searchsorted(self._ids, numbers).clip(max=len(self._ids) - 1)
            return self._leaves[places][ids], (self._ids[places] == numbers)[ids]
        places = np.searchsorted(self._ids, ids).clip(max=len(self._ids) - 1)
        return self._leaves[places], self._ids[places] == ids

    def wrong(self, ids: NDArray[Any]) -> dict[int, int]:
        """Ids that stand for nothing, and how many pixels have them."""
        values, counts = np.unique(ids, return_counts=True)
        return {int(v): int(n) for v, n in zip(values, counts, strict=True) if int(v) not in self.classes}

    def describe_wrong(self, ids: NDArray[Any]) -> str:
        wrong = self.wrong(ids)
        colours = int(self._ids[-1]) > MAX_ID
        name = (lambda i: f"{i >> 16} {i >> 8 & 255} {i & 255}") if colours else str
        shown = ", ".join(f"{name(number)} ({count} pixels)" for number, count in sorted(wrong.items())[:5])
        more = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        if colours:
            return f"the mask has colours that stand for no class: {shown}{more}"
        return f"the mask has ids that stand for no class: {shown}{more}; allowed are {ranges(self.classes)}"


@dataclass(frozen=True)
class Relabelled:
    """A mask whose leaves stand in another order."""

    labels: Callable[[], NDArray[np.uint8]]
    order: bytes

    def __call__(self) -> NDArray[np.uint8]:
        table = np.full(256, IGNORE, np.uint8)
        table[: len(self.order)] = np.frombuffer(self.order, np.uint8)
        return table[self.labels()]


def mask_ids(dataset: Dataset) -> dict[str, int]:
    """Leaf -> the id that the masks have for it, so that predictions are masks of the same kind."""
    labels: Any = dataset.labeled[0].labels if dataset.labeled else None
    while isinstance(labels, Relabelled):
        labels = labels.labels
    table = getattr(labels, "table", None)
    ids: dict[str, int] = {}
    for number, name in sorted(table.classes.items() if isinstance(table, LeafTable) else ()):
        if name is not None and number < IGNORE:
            ids.setdefault(name, number)
    leaves = dataset.hierarchy.leaves
    return ids if set(ids) == set(leaves) else {leaf: index for index, leaf in enumerate(leaves)}


def ranges(numbers: Any) -> str:
    """Numbers in short.

    >>> ranges([0, 1, 2, 5, 255])
    '0-2, 5, 255'
    """
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
