"""A data set from its configuration."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from glob import glob
from pathlib import Path

import numpy as np

from ..errors import DataError, choose, hint
from ..logic.hierarchy import Hierarchy
from .config import DataConfig
from .dataset import Dataset, ListRecord, Masked, Photo, Relabelled, Split
from .files import ImageFile, is_image, walk, without_suffix
from .hierarchies import hierarchy_of, of_kind
from .layouts import LAYOUTS, Layout
from .lists import Entry, fingerprint, known_name, order_of
from .witness import LABELS, Witness, read_witness, with_heard, with_witness

REST = "rest"
SCENES = "scenes"


def open_dataset(config: DataConfig, base: Path | None = None) -> Dataset:
    """Find every image that the configuration names; nothing is decoded yet.

    Relative paths are taken from `base`, the folder of the configuration file, and then from the current folder.
    Images that are not labelled come as bare photos: where their masks are is not even computed.
    """
    choose("data.layout", config.layout, [SCENES, *LAYOUTS])
    if config.layout == SCENES:
        data, places = _open_scenes(config), _bases(base)
    else:
        opening = Opening(config, base)
        data, places = opening.dataset(), opening.places
    return with_witness(data, find_witness(config, data.hierarchy, places)) if has_table(config) else data


def open_split(config: DataConfig, base: Path | None = None, split: str | None = None) -> Split:
    """One split of the data set, or a list file, to evaluate on; None is what `data.val` names, if it names any.

    Nothing else is looked for: what was trained on, labelled or not, may be gone.
    """
    choose("data.layout", config.layout, [SCENES, *LAYOUTS])
    if config.layout != SCENES:
        opening = Opening(config, base)
        return opening.evaluated(config.val, "data.val") if split is None else opening.evaluated(split)
    data = _open_scenes(config)
    if split is None:
        return Split(data.hierarchy, data.val, data.lists["val"])
    items = data.split(split)
    return Split(data.hierarchy, items, record(f"scenes, seed {config.scenes.seed}: {split}", items))


def open_hidden(config: DataConfig, base: Path | None = None) -> Split:
    """The unlabelled images with their masks, where they have some: to measure pseudo labels afterwards.

    Training never calls this; a test holds it to that.
    """
    choose("data.layout", config.layout, [SCENES, *LAYOUTS])
    if config.layout != SCENES:
        opening = Opening(config, base)
        hidden, places = opening.hidden(), opening.places
    else:
        data, places = _open_scenes(config), _bases(base)
        names = {photo.name for photo in data.unlabeled}
        items = tuple(item for item in data.split("train") if item.name in names)
        hidden = Split(data.hierarchy, items, record(f"scenes, seed {config.scenes.seed}: unlabeled", items))
    if not has_table(config):
        return hidden
    witness = find_witness(config, hidden.hierarchy, places)
    return replace(hidden, items=with_heard(hidden.items, witness), witness=witness.concepts)


class Opening:
    """A data set being opened. `problem` is told what is wrong with an item; it raises, or goes on without the item."""

    def __init__(
        self, config: DataConfig, base: Path | None = None, problem: Callable[[DataError], None] | None = None
    ) -> None:
        self.config = config
        self.bases = _bases(base)
        self.problem = problem or _raise
        self.layout: Layout = LAYOUTS[config.layout](self._root())
        self.places = [self.layout.root, *self.bases]
        self.hierarchy = hierarchy_of(config, self.layout, self.places)

    def dataset(self) -> Dataset:
        labeled, labeled_from = self.entries(self.config.labeled, "data.labeled")
        val, val_from = ([], "none") if self.config.val is None else self.entries(self.config.val, "data.val")
        wanted = {"labeled": self.found(labeled, labeled_from), "val": self.found(val, val_from)}
        self.layout.prepare(name for found in wanted.values() for name in found)
        labeled_names = wanted["labeled"]
        unlabeled = self.unlabeled({*labeled_names, *wanted["val"]})
        self.refuse_overlap(labeled_names, unlabeled, wanted["val"])
        items = {key: self.masked(found) for key, found in wanted.items()}
        lists = {
            "labeled": record(labeled_from, items["labeled"]),
            "unlabeled": record(rule(self.config.unlabeled), unlabeled),
            "val": record(val_from, items["val"]),
        }
        name = self.hierarchy.title if self.config.layout == "folder" else self.layout.title
        return Dataset(name, self.hierarchy, items["labeled"], tuple(unlabeled), items["val"], lists, self.split)

    def split(self, value: str) -> tuple[Masked, ...]:
        return self.evaluated(value).items

    def evaluated(self, value: str | None, key: str = "the split") -> Split:
        entries, source = ([], "none") if value is None else self.entries(value, key)
        found = self.found(entries, source)
        self.layout.prepare(found)
        items = self.masked(found)
        return Split(self.hierarchy, items, record(source, items))

    def hidden(self) -> Split:
        """Unlabelled images of the data set itself that have a mask."""
        labeled, source = self.entries(self.config.labeled, "data.labeled")
        val, val_from = ([], "none") if self.config.val is None else self.entries(self.config.val, "data.val")
        photos = self.unlabeled({*self.found(labeled, source), *self.found(val, val_from)})
        names = [photo.name for photo in photos if photo.name in self.layout.images]
        self.layout.prepare(names)
        items = []
        for name in names:
            try:
                item = self.layout.masked(name, self.hierarchy)
            except DataError:  # this one has none
                continue
            path = getattr(item.labels, "path", None)
            if path is None or path.exists():
                items.append(item)
        return Split(self.hierarchy, tuple(items), record(rule(self.config.unlabeled), items))

    # ---- lists --------------------------------------------------------------------------------------

    def entries(self, value: str, key: str) -> tuple[list[Entry], str]:
        """The entries of a split or a list file, and where they come from."""
        if value in self.layout.splits():
            return self.layout.split(value)
        for path in self._paths(value):
            if path.is_file():
                return self.layout.read_list(path), str(path)
        raise self._unknown(value, key, "a split or a list file")

    def found(self, entries: Iterable[Entry], source: str) -> dict[str, str | None]:
        """Names of images, each with its mask's path if the list has one; an image that is there twice counts once."""
        found: dict[str, str | None] = {}
        for entry in entries:
            name = self.layout.find(entry)
            if name is None:
                self.problem(self._missing_image(entry, source))
            else:
                found.setdefault(name, entry.mask)
        return found

    def masked(self, found: dict[str, str | None]) -> tuple[Masked, ...]:
        items = []
        for name, written in found.items():
            try:
                item = self.layout.masked(name, self.hierarchy, written)
                path = getattr(item.labels, "path", None)
                if path is not None and not path.exists():
                    raise DataError(f"{path}: there is no such file, and {name!r} needs a mask{_beside(path)}")
            except DataError as error:
                self.problem(error)
            else:
                items.append(item)
        return tuple(items)

    # ---- images without labels ----------------------------------------------------------------------

    def unlabeled(self, used: Iterable[str]) -> list[Photo]:
        """`used`: labelled or held out, and so not of the rest."""
        given = self.config.unlabeled
        photos: dict[str, Photo] = {}
        for value in [] if given is None else given if isinstance(given, list) else [given]:
            for photo in self._photos(value, set(used)):
                photos.setdefault(photo.where, photo)
        return list(photos.values())

    def _photos(self, value: str, used: set[str]) -> list[Photo]:
        if value == REST or value in self.layout.splits():
            entries, source = self.entries(self.layout.train if value == REST else value, "data.unlabeled")
            names = self.found((Entry(entry.image) for entry in entries), source)
            return [self.layout.photo(name) for name in names if value != REST or name not in used]
        for path in self._paths(value):
            if path.is_dir():
                if files := walk(path):
                    return self._outside(files, path)
                raise DataError(f"data.unlabeled: {path}: there is no image in this folder")
            if path.is_file():
                return self._outside([path], path) if is_image(path) else self._listed(path)
        for place in self.places:
            matches = sorted(glob(_expanded(value), root_dir=place, recursive=True))
            if files := [place / match for match in matches if is_image(match)]:
                return self._outside(files, place / value)
        raise self._unknown(value, "data.unlabeled", "rest, a split, a folder, a glob or a list file")

    def _outside(self, files: list[Path], source: Path) -> list[Photo]:
        """Photos from anywhere; but masks are no photos."""
        files = [path for path in files if not self.layout.is_mask(path)]
        photos = [Photo(_name(path, self.layout.root), ImageFile(path)) for path in files]
        if not photos:
            raise DataError(f"data.unlabeled: {source}: these are masks and no photos")
        return photos

    def _listed(self, path: Path) -> list[Photo]:
        photos = []
        for entry in self.layout.read_list(path):
            if (name := self.layout.find(entry)) is not None:
                photos.append(self.layout.photo(name))
                continue
            files = [place / entry.image for place in (path.parent, *self.places) if (place / entry.image).is_file()]
            if files and not self.layout.is_mask(files[0]):
                photos.append(Photo(_name(files[0], self.layout.root), ImageFile(files[0])))
            else:
                self.problem(self._missing_image(entry, str(path)))
        return photos

    # ---- what is wrong ------------------------------------------------------------------------------

    def refuse_overlap(self, labeled: Iterable[str], unlabeled: Iterable[Photo], val: Iterable[str]) -> None:
        held_out = {os.path.realpath(self.layout.images[name]): name for name in val}
        if not held_out:
            return
        for key, paths in (
            ("labeled", [str(self.layout.images[name]) for name in labeled]),
            ("unlabeled", [photo.where for photo in unlabeled]),
        ):
            shared = [held_out[real] for real in map(os.path.realpath, paths) if real in held_out]
            if shared:
                some = f"{len(shared)} images are" if len(shared) > 1 else "an image is"
                why = f"both in data.{key} and in data.val ({self.config.val}), such as {shared[0]!r}"
                self.problem(DataError(f"{some} {why}; evaluation needs images of its own"))

    def _missing_image(self, entry: Entry, source: str) -> DataError:
        folders = " or ".join(str(self.layout.root / folder) for folder in self.layout.image_folders)
        closest = near(entry.bare, self.layout.images)
        return DataError(f"{source}: there is no image {entry.image!r} in {folders}{closest}")

    def _unknown(self, value: str, key: str, expected: str) -> DataError:
        splits = self.layout.splits()
        options = [*splits, *(p.name for place in self.places if place.is_dir() for p in place.iterdir())]
        offered = f" (splits: {', '.join(splits[:12])}{', ...' if len(splits) > 12 else ''})" if splits else ""
        missing = f"{key} is {value!r}, which is not in {self.layout.root}"
        return DataError(f"{missing}; expected {expected}{offered}{hint(value, options)}")

    # ---- places -------------------------------------------------------------------------------------

    def _root(self) -> Path:
        given = self.config.root
        if not given:
            raise DataError(f"data.root is empty, expected the folder of the data set (layout {self.config.layout})")
        expanded = _expanded(given)
        for base in self.bases:
            if (base / expanded).is_dir():
                return base / expanded
        parents = [(base / expanded).parent for base in self.bases]
        there = [p.name for parent in parents if parent.is_dir() for p in parent.iterdir() if p.is_dir()]
        missing = _none_is([base / expanded for base in self.bases], "folder")
        raise DataError(f"data.root is {given!r}, and {missing}{hint(Path(expanded).name, there)}")

    def _paths(self, value: str) -> list[Path]:
        return list(dict.fromkeys(place / _expanded(value) for place in self.places))


def has_table(config: DataConfig) -> bool:
    """Whether a witness is to be read from a file. One who speaks by the labelled images is the trainer's business."""
    return config.witness not in (None, LABELS)


def find_witness(config: DataConfig, hierarchy: Hierarchy, places: Iterable[Path]) -> Witness:
    """That of a configuration which has one."""
    assert config.witness is not None
    paths = [place / _expanded(config.witness) for place in places]
    for path in paths:
        if path.is_file():
            return read_witness(path, hierarchy)
    there = [LABELS, *(p.name for path in paths if path.parent.is_dir() for p in path.parent.iterdir())]
    missing = _none_is(paths, "file")
    raise DataError(f"data.witness is {config.witness!r}, and {missing}{hint(paths[0].name, there)}")


def _none_is(paths: Iterable[Path], what: str) -> str:
    """
    >>> _none_is([Path("a/b"), Path("b")], "folder"), _none_is([Path("b"), Path("b")], "file")
    ('neither a/b nor b is a folder', 'b is no file')
    """
    looked = list(dict.fromkeys(map(str, paths)))
    return f"neither {' nor '.join(looked)} is a {what}" if len(looked) > 1 else f"{looked[0]} is no {what}"


def _bases(base: Path | None) -> list[Path]:
    """Where relative paths start."""
    return list(dict.fromkeys([base or Path(), Path()]))


def record(source: str, items: Iterable[Photo]) -> ListRecord:
    names = [item.name for item in items]
    print_ = fingerprint(names)
    return ListRecord(source, len(names), print_, known_name(print_), order_of(names))


def near(name: str, options: Iterable[str]) -> str:
    """As `hint`; of very many options only those that start alike are compared."""
    options = list(options)
    if len(options) > 2000:
        start = name[: max(1, len(name) // 2)].casefold()
        options = [option for option in options if option.casefold().startswith(start)][:2000]
    return hint(name, options)


def _open_scenes(config: DataConfig) -> Dataset:
    from .scenes import scenes

    hierarchy, train, val = scenes(config.scenes)
    kind = of_kind(hierarchy, config.hierarchy_kind, config.hierarchy_seed)
    if kind != hierarchy:
        order = np.array([kind.leaves.index(leaf) for leaf in hierarchy.leaves], np.uint8).tobytes()
        train = [Masked(item.name, item.source, Relabelled(item.labels, order)) for item in train]
        val = [Masked(item.name, item.source, Relabelled(item.labels, order)) for item in val]
    if config.hierarchy is not None:
        raise DataError("data.hierarchy is given, but scenes have their own; expected null")
    count = config.scenes.labeled
    if not 0 < count <= len(train):
        raise DataError(f"data.scenes.labeled is {count}, expected 1 to {len(train)} (data.scenes.train)")
    if config.unlabeled not in (REST, None):
        raise DataError(f"data.unlabeled is {config.unlabeled!r}; scenes are generated, expected rest or null")
    labeled, rest = tuple(train[:count]), tuple(item.bare() for item in train[count:])
    unlabeled = rest if config.unlabeled == REST else ()
    evaluated = tuple(val) if config.val is not None else ()
    rule = f"scenes, seed {config.scenes.seed}"
    items: dict[str, tuple[Photo, ...]] = {"labeled": labeled, "unlabeled": unlabeled, "val": evaluated}

    splits = {"labeled": labeled, "train": tuple(train), "val": tuple(val)}

    def split(name: str) -> tuple[Masked, ...]:
        return splits[choose("the split", name, splits)]

    lists = {key: record(f"{rule}: {key}", found) for key, found in items.items()}
    return Dataset(SCENES, kind, labeled, unlabeled, evaluated, lists, split)


def rule(given: str | list[str] | None) -> str:
    return "none" if given is None else ", ".join(given) if isinstance(given, list) else given


def _name(path: Path, root: Path) -> str:
    inside = path.is_relative_to(root)
    return without_suffix((path.relative_to(root) if inside else Path(path.parent.name, path.name)).as_posix())


def _expanded(path: str) -> str:
    return os.path.expandvars(os.path.expanduser(path))


def _beside(path: Path) -> str:
    """A file of that name in another spelling, or of another kind; other numbers are other images."""
    if not path.parent.is_dir():
        return ""
    digits = re.findall(r"\d+", path.stem)
    return near(path.name, (p.name for p in path.parent.iterdir() if re.findall(r"\d+", p.stem) == digits))


def _raise(error: DataError) -> None:
    raise error
