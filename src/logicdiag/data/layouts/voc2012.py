"""PASCAL VOC 2012 as VOCtrainval_11-May-2012.tar unpacks, with or without the masks of SBD."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from ..files import IndexMask, MaskSource, opened, without_suffix
from ..lists import read_list
from .base import Layout, existing

CLASSES = (
    *("background", "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow"),
    *("diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor"),
)
SBD = ("benchmark_RELEASE/dataset", "SBD", "sbd", "SBD/dataset")
AUG = "SegmentationClassAug"


class Voc2012(Layout):
    """
    JPEGImages/NAME.jpg
    SegmentationClass/NAME.png        1464 + 1449 fine masks
    SegmentationClassAug/NAME.png     SBD's masks as indices, as they are commonly unpacked; or
    benchmark_RELEASE/dataset/cls/NAME.mat    SBD's own archive, in this folder or up to two above it
    ImageSets/Segmentation/*.txt      train, val, trainval; trainaug if there is one
    """

    title = "voc2012"
    image_folders = ("JPEGImages",)
    mask_folders = ("SegmentationClass", AUG, "SegmentationObject")
    split_folders = ("ImageSets/Segmentation", "splits")
    shape = "JPEGImages/, SegmentationClass/ and ImageSets/Segmentation/"

    def find_root(self, root: Path) -> Path:
        return super().find_root(
            next((p for p in (root, root / "VOC2012", root / "VOCdevkit/VOC2012") if (p / "JPEGImages").is_dir()), root)
        )

    @cached_property
    def sbd(self) -> Path | None:
        """The folder of SBD's own archive that holds cls/."""
        above = (self.root, *self.root.resolve().parents[:2])
        return next((p / folder for p in above for folder in SBD if (p / folder / "cls").is_dir()), None)

    def classes(self, kind: str = "") -> Mapping[int, str | None]:
        return {**dict(enumerate(CLASSES)), 255: None}

    def mask_source(self, name: str, written: str | None) -> tuple[MaskSource, str]:
        """The mask that the list names; else the fine one; else SBD's."""
        fine = self.root / "SegmentationClass" / f"{name}.png"
        png = existing(*([self.root / written] if written else []), fine, self.root / AUG / f"{name}.png")
        if not png.exists() and self.sbd is not None and (mat := self.sbd / "cls" / f"{name}.mat").exists():
            return SbdMask(mat, self.images[name]), ""
        return IndexMask(png if png.exists() else fine), ""

    # ---- the 10582 images of train and SBD ------------------------------------------------------------

    @property
    def train(self) -> str:
        return "trainaug" if "trainaug" in self.splits() else "train"

    def own_splits(self) -> dict[str, Callable[[], list[str]]]:
        augmented = (self.root / AUG).is_dir() or self.sbd is not None
        return {"trainaug": self._trainaug} if augmented else {}

    def _trainaug(self) -> list[str]:
        """VOC's train and all of SBD, less VOC's val."""
        names = {entry.bare for entry in self.split("train")[0]}
        if self.sbd is not None:
            lists = [self.sbd / "train.txt", self.sbd / "val.txt"]
            names |= {entry.bare for path in lists if path.is_file() for entry in read_list(path)}
        if (self.root / AUG).is_dir():
            names |= {without_suffix(path.name) for path in (self.root / AUG).glob("*.png")}
        return sorted(names - {entry.bare for entry in self.split("val")[0]})


@dataclass(frozen=True)
class SbdMask:
    """A mask of SBD's own archive, a MATLAB file."""

    path: Path
    image: Path

    def ids(self) -> NDArray[Any]:
        try:
            from scipy.io import loadmat  # type: ignore[import-untyped]  # scipy has no stubs
            from scipy.io.matlab import MatReadError  # type: ignore[import-untyped]
        except ImportError:
            raise DataError(
                f"{self.path}: reading SBD's own masks needs scipy (pip install scipy), "
                f"or the masks as PNG files in {AUG}"
            ) from None
        try:
            return np.asarray(loadmat(self.path)["GTcls"][0]["Segmentation"][0])
        except (OSError, ValueError, KeyError, IndexError, TypeError, MatReadError) as error:
            raise DataError(f"{self.path}: cannot be read as a mask of SBD: {error}") from None

    def size(self) -> tuple[int, int]:
        with opened(self.image) as image:  # SBD's masks are drawn on VOC's images as stored
            return image.height, image.width
