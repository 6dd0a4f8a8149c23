"""COCO 2017 as its archives unpack; masks are made from the annotations of instances."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from ...errors import DataError, hint
from ...logic.hierarchy import Hierarchy
from ..files import IndexMask, MaskSource
from .base import Layout, fold
from .rle import decode

SPLITS = ("train2017", "val2017", "test2017", "unlabeled2017")
BACKGROUND = "background"
FINER = 5


class Coco(Layout):
    """
    train2017/000000000009.jpg, val2017/...
    annotations/instances_train2017.json, instances_val2017.json
    masks/000000000009.png    only if a list names it: indices, 0 background, then the 80 classes in COCO's order

    An annotation file is parsed once, for the images whose masks will be asked for; no other mask is ever made.
    """

    title = "coco"
    mask_folders = ("masks", "annotations")
    shape = "train2017/, val2017/ and annotations/instances_train2017.json"

    def __init__(self, root: Path) -> None:
        self.image_folders = tuple(s for s in SPLITS if (root / s).is_dir()) or SPLITS[:2]
        super().__init__(root)
        self._masks: dict[str, CocoMask] = {}

    @cached_property
    def _things(self) -> list[str]:
        return [leaf for leaf in Hierarchy.load(self.title).leaves if leaf != BACKGROUND]

    def classes(self, kind: str = "") -> Mapping[int, str | None]:
        return {**dict(enumerate([BACKGROUND, *self._things])), 255: None}

    # ---- splits: `train` is train2017 ---------------------------------------------------------------

    def own_splits(self) -> dict[str, Callable[[], list[str]]]:
        splits: dict[str, Callable[[], list[str]]] = {}
        for folder in self.image_folders:
            splits[folder] = splits[folder.removesuffix("2017")] = self._members(folder)
        return splits

    def _members(self, folder: str) -> Callable[[], list[str]]:
        return lambda: [name for name, path in self.images.items() if path.parent.name == folder]

    # ---- masks ----------------------------------------------------------------------------------------

    def prepare(self, names: Iterable[str]) -> None:
        """Read the annotations of these images; those of all others are let go at once."""
        wanted: dict[str, set[str]] = {}
        for name in names:
            if name not in self._masks:
                wanted.setdefault(self.images[name].parent.name, set()).add(name)
        for split, those in wanted.items():
            path = self.root / "annotations" / f"instances_{split}.json"
            if path.is_file():
                self._masks.update(_read(path, those, self._things))

    def mask_source(self, name: str, written: str | None) -> tuple[MaskSource, str]:
        if written is not None and (path := self.root / written).is_file():
            return IndexMask(path), ""
        if name not in self._masks:
            path = self.root / "annotations" / f"instances_{self.images[name].parent.name}.json"
            missing = f"it has no image {name!r}" if path.is_file() else "there is no such file"
            raise DataError(f"{path}: {missing}, and a labelled image needs annotations")
        return self._masks[name], ""


@dataclass(frozen=True, eq=False)
class Thing:
    """An object: its index, whether it is a crowd, its area, and polygons (x, y, x, y, ...) or runs."""

    index: int
    crowd: bool
    area: float
    polygons: tuple[NDArray[np.float32], ...]
    runs: Any = None


@dataclass(frozen=True, eq=False)
class CocoMask:
    """A mask made from annotations: crowds first, then larger objects first, so that small ones stay on top."""

    path: Path
    name: str
    height: int
    width: int
    things: tuple[Thing, ...]

    def ids(self) -> NDArray[np.uint8]:
        canvas = np.zeros((self.height, self.width), np.uint8)
        for thing in sorted(self.things, key=lambda t: (not t.crowd, -t.area)):
            if thing.runs is not None:
                try:
                    canvas[decode(thing.runs, self.height, self.width)] = thing.index
                except ValueError as error:
                    raise DataError(f"{self.path}: an annotation of {self.name!r} cannot be read: {error}") from None
            for polygon in thing.polygons:
                fill(canvas, polygon, thing.index)
        return canvas

    def size(self) -> tuple[int, int]:
        return self.height, self.width


def fill(canvas: NDArray[np.uint8], polygon: NDArray[np.float32], index: int) -> None:
    """Give the pixels inside a polygon (x, y, x, y, ...) an index.

    Drawn `FINER` times as large and sampled at the centres of pixels: drawn as it is, Pillow's outline would make small
    objects a quarter larger than COCO's own code does.
    """
    points = polygon.reshape(-1, 2)
    limit = canvas.shape[::-1]
    low = np.floor(points.min(0)).clip(0, limit).astype(int)
    high = np.ceil(points.max(0)).clip(0, limit).astype(int)
    if (high <= low).any():
        return
    width, height = (high - low).tolist()
    large = Image.new("1", (width * FINER, height * FINER))
    ImageDraw.Draw(large).polygon(((points - low) * FINER - 0.5).ravel().tolist(), fill=1)
    inside = np.array(large)[FINER // 2 :: FINER, FINER // 2 :: FINER]
    canvas[low[1] : high[1], low[0] : high[0]][inside] = index


def _read(path: Path, names: set[str], classes: list[str]) -> dict[str, CocoMask]:
    try:
        data = json.loads(path.read_bytes())
        places = {fold(name): i for i, name in enumerate(classes, 1)}
        index = {}
        for category in data["categories"]:
            if fold(category["name"]) not in places:
                raise DataError(
                    f"{path}: {category['name']!r} is no class of COCO{hint(str(category['name']), classes)}"
                )
            index[category["id"]] = places[fold(category["name"])]
        images = {image["id"]: image for image in data["images"] if Path(image["file_name"]).stem in names}
        things: dict[Any, list[Thing]] = {number: [] for number in images}
        for annotation in data["annotations"]:
            if annotation["image_id"] in images:
                things[annotation["image_id"]].append(_thing(annotation, index))
        return {
            (name := Path(image["file_name"]).stem): CocoMask(
                path, name, int(image["height"]), int(image["width"]), tuple(things[number])
            )
            for number, image in images.items()
        }
    except DataError:
        raise
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise DataError(f"{path}: cannot be read as JSON: {error}") from None
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path}: not in the format of COCO's instances: {error!r}") from None


def _thing(annotation: dict[str, Any], index: dict[Any, int]) -> Thing:
    shape = annotation["segmentation"]
    crowd, area = bool(annotation.get("iscrowd", 0)), float(annotation.get("area", 0))
    if isinstance(shape, dict):
        return Thing(index[annotation["category_id"]], crowd, area, (), shape["counts"])
    polygons = tuple(
        np.asarray(polygon, np.float32) for polygon in shape if len(polygon) >= 6 and len(polygon) % 2 == 0
    )
    return Thing(index[annotation["category_id"]], crowd, area, polygons)
