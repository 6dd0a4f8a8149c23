"""A check of a data set before anything is trained: every file is read once, and every finding is kept."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError, LogicDiagError
from .config import DataConfig
from .dataset import IGNORE, ListRecord, Masked, Photo
from .files import ColourMaskError, ImageFile, Labels
from .lists import Entry
from .open import SCENES, Opening, find_witness, has_table, open_dataset, record, rule
from .report import Finding, Report, SplitReport
from .witness import with_heard

Progress = Callable[[str, int, int], None]
UNTOLD = (
    "the camera marks the image as turned or mirrored, and its mask fits both ways; "
    "it is used as it is stored, so save it upright, without the mark"
)


def check(config: DataConfig, base: Path | None = None, progress: Progress = lambda what, done, total: None) -> Report:
    """Read every image and every mask that training and evaluation would; go on after what is wrong.

    Masks of images that are not labelled are not opened here either. `progress` is told what is read, how many of it
    are done, and how many there are.
    """
    return _Check(config, base, progress).report()


class _Check:
    def __init__(self, config: DataConfig, base: Path | None, progress: Progress) -> None:
        self.config, self.base, self.progress = config, base, progress
        self.findings: list[Finding] = []
        self.split = ""
        self.kind = "missing"

    def report(self) -> Report:
        try:
            name, leaves, parts = self._scenes() if self.config.layout == SCENES else self._files()
        except LogicDiagError as error:
            self._error("broken", str(error))
            return Report(self.config.root or self.config.layout, (), (), tuple(self.findings))
        splits = tuple(self._scan(key, items, source, leaves) for key, (items, source) in parts.items())
        self._few(parts)
        return Report(name, leaves, splits, tuple(self.findings))

    # ---- what there is --------------------------------------------------------------------------------

    def _scenes(self) -> _Found:
        data = open_dataset(self.config, self.base)
        items = {"labeled": data.labeled, "unlabeled": data.unlabeled, "val": data.val}
        return data.name, data.hierarchy.leaves, {key: (items[key], data.lists[key]) for key in items}

    def _files(self) -> _Found:
        """As `Opening.dataset`, but each list on its own, so that one that is broken does not hide the others."""
        opening = Opening(self.config, self.base, self._problem)
        sources, found = {}, {}
        for key in ("labeled", "val"):
            self.split, value = key, getattr(self.config, key)
            entries: list[Entry] = []
            sources[key] = str(value or "none")
            try:
                if value is not None:
                    entries, sources[key] = opening.entries(value, f"data.{key}")
            except DataError as error:
                self._error("broken", str(error))
            self._duplicates(entries, sources[key])
            found[key] = opening.found(entries, sources[key])
        parts: dict[str, tuple[Sequence[Photo], ListRecord]] = {}
        for key in ("labeled", "val"):
            self.split = key
            try:
                opening.layout.prepare(found[key])
            except DataError as error:
                self._error("unreadable", str(error))
                continue
            masked = opening.masked(found[key])
            parts[key] = masked, record(sources[key], masked)
        self.split = "unlabeled"
        try:
            photos = opening.unlabeled(found["labeled"])
        except DataError as error:
            self._error("broken", str(error))
            photos = []
        parts["unlabeled"] = photos, record(rule(self.config.unlabeled), photos)
        if has_table(self.config):
            try:
                with_heard(photos, find_witness(self.config, opening.hierarchy, opening.places))
            except DataError as error:
                self._error("broken", str(error))
        self.split, self.kind = "", "overlap"
        opening.refuse_overlap(found["labeled"], photos, found["val"])
        order = [key for key in ("labeled", "unlabeled", "val") if key in parts]
        return str(opening.layout.root), opening.hierarchy.leaves, {key: parts[key] for key in order}

    # ---- reading ----------------------------------------------------------------------------------------

    def _scan(self, key: str, items: Sequence[Photo], source: ListRecord, leaves: tuple[str, ...]) -> SplitReport:
        self.split = key
        sizes: list[tuple[int, int]] = []
        masked = key != "unlabeled"
        pixels, images_of = np.zeros(len(leaves) + 1, np.int64), np.zeros(len(leaves) + 1, np.int64)
        for done, seen in enumerate(_each(lambda item: _look(item, len(leaves)), items), 1):
            for kind, message in seen.wrong:
                self._error(kind, message)
            if seen.untold:
                self._warn("turned", f"{items[done - 1].where}: {UNTOLD}")
            if seen.size is not None:
                sizes.append(seen.size)
            if seen.pixels is not None:
                pixels += seen.pixels
                images_of += seen.pixels > 0
                if not seen.pixels[:-1].any():
                    self._warn("all_ignore", f"{seen.where}: every pixel of the mask is ignored")
            self.progress(key, done, len(items))
        if masked and items:
            self._absent([leaf for leaf, n in zip(leaves, images_of, strict=False) if not n], source)
        sizes.sort(key=lambda size: (size[0] * size[1], size))
        counts = (pixels, images_of) if masked else (None, None)
        return SplitReport(key, source.source, source.known, len(items), tuple(sizes), *counts)

    # ---- findings ---------------------------------------------------------------------------------------

    def _absent(self, absent: Sequence[str], source: ListRecord) -> None:
        if absent:
            purpose = "learned" if self.split == "labeled" else "measured"
            shown = f"no image of {source.source} shows {', '.join(absent)}"
            self._warn("no_class", f"{shown}; what is not shown cannot be {purpose}")

    def _duplicates(self, entries: Iterable[Entry], source: str) -> None:
        for image, count in Counter(entry.image for entry in entries).items():
            if count > 1:
                self._warn("duplicate", f"{source}: {image!r} is there {count} times, and counts once")

    def _few(self, parts: dict[str, tuple[Sequence[Photo], ListRecord]]) -> None:
        labeled, unlabeled = (len(parts[key][0]) if key in parts else 0 for key in ("labeled", "unlabeled"))
        self.split = "unlabeled"
        if self.config.unlabeled is not None and unlabeled < labeled:
            self._warn("few", f"only {unlabeled} unlabelled images beside {labeled} labelled ones")

    def _problem(self, error: DataError) -> None:
        self._error(self.kind, str(error))

    def _error(self, kind: str, message: str) -> None:
        self.findings.append(Finding(kind, self.split, message, True))

    def _warn(self, kind: str, message: str) -> None:
        self.findings.append(Finding(kind, self.split, message, False))


_Found = tuple[str, tuple[str, ...], dict[str, tuple[Sequence[Photo], ListRecord]]]


@dataclass(frozen=True)
class _Seen:
    """What one item is like."""

    where: str
    size: tuple[int, int] | None
    pixels: NDArray[np.int64] | None
    wrong: tuple[tuple[str, str], ...]
    untold: bool = False
    """Marked as turned, which its mask does not confirm or deny."""


def _each(look: Callable[[Photo], _Seen], items: Sequence[Photo]) -> Iterator[_Seen]:
    """In order, several at a time: Pillow decodes outside the GIL. Stopped half-way, it leaves the others unread."""
    pool = ThreadPoolExecutor(max(1, min(os.cpu_count() or 1, 8)))
    try:
        yield from pool.map(look, items)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _look(item: Photo, leaves: int) -> _Seen:
    wrong: list[tuple[str, str]] = []
    size = mask = None
    untold = False
    where = item.where
    try:
        height, width, _ = item.image().shape
        size = height, width
        untold = isinstance(item.source, ImageFile) and item.source.untold()
    except DataError as error:
        wrong.append(("unreadable", str(error)))
    if isinstance(item, Masked):
        where = str(getattr(item.labels, "path", item.name))
        try:
            mask = _mask(item, wrong)
        except ColourMaskError as error:
            wrong.append(("colour", str(error)))
        except DataError as error:
            wrong.append(("unreadable", str(error)))
        if size is not None and mask is not None and mask.shape != size:
            shape = f"{mask.shape[1]} x {mask.shape[0]}"
            wrong.append(("size", f"{where}: the mask is {shape}, and {item.where} is {size[1]} x {size[0]}"))
    pixels = None
    if mask is not None:
        counts = np.bincount(mask.ravel(), minlength=IGNORE + 1)
        pixels = np.append(counts[:leaves], counts[IGNORE])
    return _Seen(where, size, pixels, tuple(wrong), untold)


def _mask(item: Masked, wrong: list[tuple[str, str]]) -> NDArray[np.uint8]:
    if not isinstance(item.labels, Labels):
        return item.mask()
    ids, table = item.labels.file.ids(), item.labels.table
    if table.wrong(ids):
        wrong.append(("wrong_ids", f"{item.labels.path}: {table.describe_wrong(ids)}"))
    return table.tolerant(ids)
