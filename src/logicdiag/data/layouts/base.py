"""What every layout of a data set on disk offers."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from pathlib import Path

from ...errors import DataError, hint
from ...logic.hierarchy import Hierarchy
from ..dataset import LeafTable, Masked, Photo
from ..files import ImageFile, IndexMask, Labels, MaskSource, walk, without_suffix
from ..lists import Entry, read_list


class Layout(ABC):
    """A data set on disk. A subclass says where images, masks and splits are, and what the ids of masks mean.

    Images are found by listing folders; masks only by asking for one image's, so that nothing is ever computed from
    the masks of images that are not labelled.
    """

    title: str = ""
    image_folders: tuple[str, ...] = ("images",)
    mask_folders: tuple[str, ...] = ("masks",)
    split_folders: tuple[str, ...] = ("splits",)
    columns = False
    """Whether numbers may follow a name in a list; elsewhere they are part of the name."""
    shape: str = ""
    """How the folder looks, for the message that it does not."""

    def __init__(self, root: Path) -> None:
        self.root = self.find_root(root)
        self._tables: dict[tuple[str, Hierarchy], LeafTable] = {}

    def find_root(self, root: Path) -> Path:
        """The folder that holds the image folders; where archives are often unpacked one deeper, it is found there."""
        if any((root / folder).is_dir() for folder in self.image_folders):
            return root
        there = [p.name for p in root.iterdir() if p.is_dir()] if root.is_dir() else []
        near = next((hint(folder, there) for folder in self.image_folders if hint(folder, there)), "")
        raise DataError(f"{root}: not in the layout {self.title}; expected {self.shape}{near}")

    # ---- to be said by each layout ----------------------------------------------------------------

    def own_hierarchy(self) -> Hierarchy:
        return Hierarchy.load(self.title)

    @abstractmethod
    def classes(self, kind: str = "") -> Mapping[int, str | None]:
        """What the ids of masks mean; None is ignore. `kind` tells kinds of masks apart where there are several."""

    def mask_source(self, name: str, written: str | None) -> tuple[MaskSource, str]:
        """The mask of an image, and its kind; `written` is the mask's path in a list, if it has one there."""
        return IndexMask(self.root / self.mask_folders[0] / f"{name}.png"), ""

    def own_splits(self) -> dict[str, Callable[[], list[str]]]:
        """Splits that are no list files, each made when it is asked for."""
        return {}

    def prepare(self, names: Iterable[str]) -> None:
        """Told once which masks will be asked for, before the first is; most need not know."""
        return None

    @property
    def train(self) -> str:
        """The split that `rest` is the rest of."""
        return "train"

    # ---- images and splits ------------------------------------------------------------------------

    @cached_property
    def images(self) -> dict[str, Path]:
        """Every image by its name."""
        found: dict[str, Path] = {}
        for folder in self.image_folders:
            for path in walk(self.root / folder):
                name = self.name_of(path, folder)
                if name in found:
                    raise DataError(f"{found[name]} and {path} have one name, {name!r}; names must be unique")
                found[name] = path
        return found

    def name_of(self, path: Path, folder: str) -> str:
        return Entry(path.name).bare

    def find(self, entry: Entry) -> str | None:
        """The name of the image that a list's entry means: the longest end of its path that is a name."""
        parts = without_suffix(entry.image.replace("\\", "/")).split("/")
        ends = ("/".join(parts[i:]) for i in range(len(parts)))
        return next((name for name in (*ends, entry.bare) if name in self.images), None)

    @cached_property
    def list_files(self) -> dict[str, Path]:
        return {
            path.stem: path
            for folder in self.split_folders
            for path in sorted((self.root / folder).glob("*.txt"))
            if not path.name.startswith(".")
        }

    def splits(self) -> list[str]:
        return [*self.list_files, *(name for name in self.own_splits() if name not in self.list_files)]

    def split(self, name: str) -> tuple[list[Entry], str]:
        """The entries of a split, and where it comes from."""
        if name in self.list_files:
            return self.read_list(self.list_files[name]), str(self.list_files[name])
        return [Entry(image) for image in self.own_splits()[name]()], f"{self.title}: {name}"

    def read_list(self, path: Path) -> list[Entry]:
        return read_list(path, self.columns)

    # ---- items --------------------------------------------------------------------------------------

    def photo(self, name: str) -> Photo:
        return Photo(name, ImageFile(self.images[name]))

    def masked(self, name: str, hierarchy: Hierarchy, written: str | None = None) -> Masked:
        mask, kind = self.mask_source(name, written)
        labels = Labels(mask, self.table(kind, hierarchy))
        return Masked(name, ImageFile(self.images[name], mask), labels)

    def table(self, kind: str, hierarchy: Hierarchy) -> LeafTable:
        if (kind, hierarchy) not in self._tables:
            self._tables[kind, hierarchy] = LeafTable(self.spelled(kind, hierarchy), hierarchy)
        return self._tables[kind, hierarchy]

    def spelled(self, kind: str, hierarchy: Hierarchy) -> dict[int, str | None]:
        """`classes`, in the hierarchy's spelling."""
        leaves = {fold(leaf): leaf for leaf in hierarchy.leaves}
        return {i: None if name is None else leaves[fold(name)] for i, name in self.classes(kind).items()}

    def class_names(self) -> list[str]:
        """Every class that a mask can hold, in mask order."""
        return list(dict.fromkeys(name for name in self.classes().values() if name is not None))

    def is_mask(self, path: Path) -> bool:
        """Whether a file lies where masks are, by whatever link it is reached: no photo is taken from there."""
        real = Path(os.path.realpath(path.parent), path.name)  # a mask may itself be a link to a store of files
        candidates = (Path(os.path.abspath(path)), real, Path(os.path.realpath(real)))
        return any(file.is_relative_to(folder) for file in candidates for folder in self._mask_places)

    @cached_property
    def _mask_places(self) -> tuple[str, ...]:
        folders = [self.root / folder for folder in self.mask_folders]
        return tuple({*map(os.path.abspath, folders), *map(os.path.realpath, folders)})


def restricted(hierarchy: Hierarchy, classes: list[str]) -> Hierarchy:
    """The hierarchy of some of its leaves; a group of one becomes that one, and an empty one goes.

    >>> h = Hierarchy.from_dict({"animal": ["bird", "cat"], "vehicle": ["car", "bus"], "sky": None})
    >>> restricted(h, ["bird", "car", "bus"]).to_dict()
    {'bird': None, 'vehicle': {'car': None, 'bus': None}}
    """
    return Hierarchy.from_dict(_restricted(hierarchy.to_dict(), set(map(fold, classes))), hierarchy.title)


def _restricted(tree: dict[str, object], keep: set[str]) -> dict[str, object]:
    out: dict[str, object] = {}
    for name, below in tree.items():
        if isinstance(below, dict):
            kept = _restricted(below, keep)
            out.update(kept if len(kept) <= 1 else {name: kept})
        elif fold(name) in keep:
            out[name] = None
    return out


def fold(name: str) -> str:
    """Names that differ in case, spaces, hyphens and underscores alone are one.

    >>> fold("Traffic Light") == fold("traffic_light")
    True
    """
    return "".join(c for c in name.casefold() if c not in " _-")


def existing(*paths: Path) -> Path:
    """The first that is there; the first of all if none is."""
    return next((path for path in paths if path.exists()), paths[0])
