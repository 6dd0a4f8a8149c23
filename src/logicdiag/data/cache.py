"""Images and masks that stay in memory once they are decoded, for all processes that read them.

The memory is shared with processes that are forked later, and each array is written once, by whoever needs it first. So
nothing is opened that would not be opened without, and nothing comes out otherwise. Where worker processes are not
forked but begin anew, they are sent the files' own sources and decode for themselves.
"""

from __future__ import annotations

import math
import mmap
import multiprocessing
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError, DataError
from .dataset import Dataset, Masked, Photo
from .files import ImageFile

MOST_BYTES = 4 << 30
MOST_SHARE = 1 / 4
"""Of the machine's memory."""

Array = NDArray[np.uint8]
Source = Callable[[], Array]


def remembered(dataset: Dataset, cache: bool | str, processes: int = 1) -> Dataset:
    """The same images, kept in memory if `data.cache` says so. `processes` share the machine, and each has a cache.

    Only files are kept; what is generated is cheap to make again.
    """
    if cache not in (True, False, "auto"):
        raise ConfigError(f"data.cache is {cache!r}, expected auto, true or false")
    if not cache:
        return dataset
    most = math.inf if cache is True else min(MOST_BYTES, MOST_SHARE * _memory()) / processes
    found = _files([*dataset.labeled, *dataset.unlabeled, *dataset.val], most)
    if not found:
        return dataset
    try:
        store = Store([shape for _, shape in found])
    except OSError:
        if cache == "auto":
            return dataset
        size = sum(math.prod(shape) for _, shape in found) / (1 << 30)
        raise ConfigError(f"data.cache is true, but {size:.1f} GiB cannot be had; expected auto or false") from None
    kept = {id(source): Kept(source, store, number) for number, (source, _) in enumerate(found)}

    def masked(items: Iterable[Masked]) -> tuple[Masked, ...]:
        return tuple(Masked(i.name, kept.get(id(i.source), i.source), kept.get(id(i.labels), i.labels)) for i in items)

    unlabeled = tuple(replace(i, source=kept.get(id(i.source), i.source)) for i in dataset.unlabeled)
    return replace(dataset, labeled=masked(dataset.labeled), unlabeled=unlabeled, val=masked(dataset.val))


class Store:
    """Arrays of known shapes in shared memory, of which pages are taken when they are written."""

    def __init__(self, shapes: Sequence[tuple[int, ...]]) -> None:
        self.shapes = shapes
        self._ends = np.cumsum([math.prod(shape) for shape in shapes]).tolist()
        self._memory = np.frombuffer(mmap.mmap(-1, self._ends[-1]), np.uint8)
        self._written = np.frombuffer(mmap.mmap(-1, len(shapes)), np.bool_)
        self._lock = multiprocessing.Lock()  # whoever sees that an array is written sees all of the array

    def get(self, number: int) -> Array | None:
        with self._lock:
            written = self._written[number]
        if not written:
            return None
        array = self._place(number)
        array.flags.writeable = False
        return array

    def put(self, number: int, array: Array) -> None:
        self._place(number)[:] = array
        with self._lock:
            self._written[number] = True

    def _place(self, number: int) -> Array:
        shape, end = self.shapes[number], self._ends[number]
        return self._memory[end - math.prod(shape) : end].reshape(shape)


class Kept:
    """A source that is asked once; what it made has a place in a store."""

    def __init__(self, source: Source, store: Store, number: int) -> None:
        self.source, self.store, self.number = source, store, number

    @property
    def path(self) -> Any:
        return self.source.path  # type: ignore[attr-defined]

    def __call__(self) -> Array:
        array = self.store.get(self.number)
        if array is None:
            array = self.source()
            if array.shape == self.store.shapes[self.number]:  # a mask may not fit its image, which others tell
                self.store.put(self.number, array)
        return array

    def __reduce__(self) -> tuple[Callable[[Source], Source], tuple[Source]]:
        return _itself, (self.source,)  # shared memory cannot be sent


def _itself(source: Source) -> Source:
    return source


def _files(items: Iterable[Photo], most: float) -> list[tuple[Source, tuple[int, ...]]]:
    """The sources of files and the shapes that they will make, from the heads of images; none if it is too much."""
    found: list[tuple[Source, tuple[int, ...]]] = []
    total = 0
    for item in items:
        if not isinstance(item.source, ImageFile):
            continue
        try:
            size = item.source.size()
        except DataError:
            continue  # said when it is its turn
        found.append((item.source, (*size, 3)))
        total += 3 * math.prod(size)
        if isinstance(item, Masked):
            found.append((item.labels, size))
            total += math.prod(size)
        if total > most:
            return []
    return found


def _memory() -> int:
    """Bytes of the machine; none where that cannot be asked."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 0
