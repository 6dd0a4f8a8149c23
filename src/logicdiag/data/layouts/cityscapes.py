"""Cityscapes as leftImg8bit_trainvaltest.zip and gtFine_trainvaltest.zip unpack."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property

from ..files import IndexMask, MaskSource
from .base import Layout, existing

EVALUATED = {
    7: "road",
    8: "sidewalk",
    11: "building",
    12: "wall",
    13: "fence",
    17: "pole",
    19: "traffic light",
    20: "traffic sign",
    21: "vegetation",
    22: "terrain",
    23: "sky",
    24: "person",
    25: "rider",
    26: "car",
    27: "truck",
    28: "bus",
    31: "train",
    32: "motorcycle",
    33: "bicycle",
}
LABEL_IDS, TRAIN_IDS = "labelIds", "labelTrainIds"


class Cityscapes(Layout):
    """
    leftImg8bit/SPLIT/CITY/NAME_leftImg8bit.png
    gtFine/SPLIT/CITY/NAME_gtFine_labelIds.png       the archive's own, or
    gtFine/SPLIT/CITY/NAME_gtFine_labelTrainIds.png  as its scripts make them
    """

    title = "cityscapes"
    image_folders = ("leftImg8bit",)
    mask_folders = ("gtFine", "gtCoarse")
    shape = "leftImg8bit/SPLIT/CITY/*_leftImg8bit.png and gtFine/SPLIT/CITY/*_gtFine_labelIds.png"

    def classes(self, kind: str = LABEL_IDS) -> Mapping[int, str | None]:
        if kind == TRAIN_IDS:
            return {**dict(enumerate(EVALUATED.values())), 255: None}
        return {**dict.fromkeys(range(34)), **EVALUATED, 255: None}  # 255 is the licence plate's -1 in 8 bits

    def mask_source(self, name: str, written: str | None) -> tuple[MaskSource, str]:
        place = self.images[name].parent.relative_to(self.root / self.image_folders[0])
        own = [self.root / "gtFine" / place / f"{name}_gtFine_{kind}.png" for kind in (LABEL_IDS, TRAIN_IDS)]
        path = existing(*([self.root / written] if written else []), *own)
        path = path if path.exists() else own[0]
        return IndexMask(path), TRAIN_IDS if path.stem.endswith(TRAIN_IDS) else LABEL_IDS

    @cached_property
    def _by_split(self) -> dict[str, list[str]]:
        splits: dict[str, list[str]] = {}
        for name, path in self.images.items():
            splits.setdefault(path.relative_to(self.root / self.image_folders[0]).parts[0], []).append(name)
        return splits

    def own_splits(self) -> dict[str, Callable[[], list[str]]]:
        return {split: names.copy for split, names in self._by_split.items()}
