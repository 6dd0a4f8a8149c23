"""The layout for one's own data: dataset.yaml, images/, masks/, splits/."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from ...errors import DataError, hint
from ...logic.hierarchy import Hierarchy
from ..dataset import IGNORE
from ..files import walk, without_suffix
from .base import Layout, restricted

KEYS = ("classes", "ignore", "hierarchy", "name")
HELD_OUT = ("val", "test")


class Folder(Layout):
    """
    dataset.yaml        classes: [name, ...] in mask order; ignore: 255; hierarchy: {...} or a built-in name
    images/NAME.jpg     (or .png)
    masks/NAME.png      8-bit indices; needed only for labelled and evaluation images
    splits/*.txt        one NAME per line
    """

    title = "folder"
    shape = "dataset.yaml, images/, masks/ and splits/"

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.file = self.root / "dataset.yaml"
        self._classes = self._read_classes()

    # ---- dataset.yaml -----------------------------------------------------------------------------

    @cached_property
    def settings(self) -> dict[str, Any]:
        try:
            data = yaml.safe_load(self.file.read_text("utf-8"))
        except FileNotFoundError:
            there = [p.name for p in self.root.iterdir() if p.is_file()]
            wanted = "expected the data set's classes and hierarchy there"
            raise DataError(f"{self.file}: there is no such file; {wanted}{hint('dataset.yaml', there)}") from None
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{self.file}: cannot be read as UTF-8 text: {error}") from None
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            place = f" in line {mark.line + 1}" if mark else ""
            raise DataError(f"{self.file}: not readable as YAML{place}: {getattr(error, 'problem', error)}") from None
        if not isinstance(data, dict):
            raise DataError(f"{self.file}: expected a mapping with the keys classes, ignore and hierarchy")
        for key in data:
            if key not in KEYS:
                raise DataError(f"{self.file}: unknown key {key!r}, expected {', '.join(KEYS)}{hint(str(key), KEYS)}")
        return data

    def _read_classes(self) -> dict[int, str | None]:
        given = self.settings.get("classes")
        if isinstance(given, list):
            classes = dict(enumerate(given))
        elif isinstance(given, dict):
            classes = given
        else:
            raise DataError(f"{self.file}: classes is {given!r}, expected a list of names in mask order")
        for number, name in classes.items():
            if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < 1 << 16:
                raise DataError(f"{self.file}: {number!r} under classes is no id of a mask, expected 0 to 65535")
            if name is not None and not isinstance(name, str):
                raise DataError(f"{self.file}: class {number} was read as {name!r}; put it in quotes to make it a name")
        names = [name for name in classes.values() if name is not None]
        if not names:
            raise DataError(f"{self.file}: classes has no name")
        return {**classes, **self._read_ignore(classes)}

    def _read_ignore(self, classes: Mapping[int, str | None]) -> dict[int, None]:
        given = self.settings.get("ignore", IGNORE)
        numbers = given if isinstance(given, list) else [] if given is None else [given]
        for number in numbers:
            if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < 1 << 16:
                raise DataError(f"{self.file}: ignore is {given!r}, expected an id of the masks, a list of ids or null")
            if classes.get(number) is not None:
                raise DataError(f"{self.file}: {number} is ignored, and it is the class {classes[number]!r}")
        return dict.fromkeys(numbers)

    def classes(self, kind: str = "") -> Mapping[int, str | None]:
        return self._classes

    def own_hierarchy(self) -> Hierarchy:
        given = self.settings.get("hierarchy")
        title = str(self.settings.get("name", self.root.resolve().name))
        if given is None:
            return Hierarchy.from_dict(self.class_names(), title)
        if isinstance(given, str):
            local = self.root / given
            return restricted(Hierarchy.load(local if local.is_file() else given), self.class_names())
        return Hierarchy.from_dict(given, title)

    # ---- images and splits ------------------------------------------------------------------------

    def name_of(self, path: Path, folder: str) -> str:
        return without_suffix(path.relative_to(self.root / folder).as_posix())

    def own_splits(self) -> dict[str, Callable[[], list[str]]]:
        """Without a list of that name, `train` is what no list for evaluation has, and `masked` those with a mask."""
        return {"train": self._not_held_out, "masked": self._with_a_mask}

    def _not_held_out(self) -> list[str]:
        held_out: set[str | None] = set()
        for split in self.list_files:
            if split.startswith(HELD_OUT):
                held_out.update(self.find(entry) for entry in self.split(split)[0])
        return [name for name in self.images if name not in held_out]

    def _with_a_mask(self) -> list[str]:
        folder = self.root / self.mask_folders[0]
        masks = {without_suffix(path.relative_to(folder).as_posix()) for path in walk(folder)}
        return [name for name in self._not_held_out() if name in masks]
