"""CamVid as Cambridge's archives unpack, and as SegNet's repository has it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from ...errors import DataError, hint
from ...logic.hierarchy import Hierarchy
from ..files import ColourMask, IndexMask, MaskSource
from .base import Layout, restricted

STILLS, COLOURS = "701_StillsRaw_full", "label_colors.txt"
NAMES: dict[str, str | None] = {
    "Sky": "sky",
    "Building": "building",
    "Wall": "wall",
    "Fence": "fence",
    "Archway": "archway",
    "Road": "road",
    "LaneMkgsDriv": "lane_marking",
    "Sidewalk": "sidewalk",
    "ParkingBlock": "parking_block",
    "RoadShoulder": "shoulder",
    "Column_Pole": "pole",
    "SignSymbol": "sign",
    "Misc_Text": "text",
    "TrafficLight": "traffic_light",
    "Tree": "tree",
    "VegetationMisc": "vegetation",
    "Car": "car",
    "SUVPickupTruck": "suv",
    "Truck_Bus": "truck_bus",
    "Pedestrian": "pedestrian",
    "Child": "child",
    "Bicyclist": "bicyclist",
    "CartLuggagePram": "cart",
    # Too rare to learn, or no class at all: ignored.
    **dict.fromkeys(["Animal", "Bridge", "LaneMkgsNonDriv", "MotorcycleScooter", "OtherMoving"]),
    **dict.fromkeys(["TrafficCone", "Train", "Tunnel", "Void"]),
}
SEGNET = ["sky", "building", "pole", "road", "sidewalk", "tree", "sign", "fence", "car", "pedestrian", "bicyclist"]
SEGNET_SPLITS = ("train", "val", "test")


class CamVid(Layout):
    """
    701_StillsRaw_full/NAME.png, LabeledApproved_full/NAME_L.png (colours), label_colors.txt: Cambridge, 23 classes; or
    train/NAME.png, trainannot/NAME.png (indices), and so for val and test: SegNet, 11 classes

    Both have the splits train, val and test of SegNet (367, 101 and 233 frames).
    """

    title = "camvid"
    shape = f"{STILLS}/, LabeledApproved_full/ and {COLOURS}, or train/, trainannot/, val/, valannot/, ..."

    def __init__(self, root: Path) -> None:
        self.segnet = not (root / STILLS).is_dir()
        if self.segnet:
            self.image_folders = tuple(s for s in SEGNET_SPLITS if (root / f"{s}annot").is_dir()) or ("train",)
            self.mask_folders = tuple(f"{split}annot" for split in SEGNET_SPLITS)
        else:
            self.image_folders, self.mask_folders = (STILLS,), ("LabeledApproved_full",)
        super().__init__(root)
        self._classes = {**dict(enumerate(SEGNET)), 11: None, 255: None} if self.segnet else self._read_colours()

    def own_hierarchy(self) -> Hierarchy:
        return restricted(Hierarchy.load(self.title), self.class_names())

    def classes(self, kind: str = "") -> Mapping[int, str | None]:
        return self._classes

    def mask_source(self, name: str, written: str | None) -> tuple[MaskSource, str]:
        if self.segnet:
            return IndexMask(self.root / f"{self.images[name].parent.name}annot" / f"{name}.png"), ""
        return ColourMask(self.root / self.mask_folders[0] / f"{name}_L.png"), ""

    def _read_colours(self) -> dict[int, str | None]:
        """Lines of `red green blue name`."""
        path = self.root / COLOURS
        try:
            lines = path.read_text("utf-8").splitlines()
        except (OSError, UnicodeDecodeError):
            raise DataError(f"{path}: cannot be read; expected the colours of CamVid's classes there") from None
        classes: dict[int, str | None] = {}
        for number, line in enumerate(filter(str.strip, lines), 1):
            match = re.fullmatch(r"\s*(\d+)\s+(\d+)\s+(\d+)\s+(\S+)\s*", line)
            if not match:
                raise DataError(f"{path}:{number}: expected 'red green blue name', found {line.strip()!r}")
            red, green, blue, name = int(match[1]), int(match[2]), int(match[3]), match[4]
            if name not in NAMES:
                raise DataError(f"{path}:{number}: {name!r} is no class of CamVid{hint(name, NAMES)}")
            classes[red << 16 | green << 8 | blue] = NAMES[name]
        return classes

    # ---- splits ---------------------------------------------------------------------------------------

    def own_splits(self) -> dict[str, Callable[[], list[str]]]:
        return {split: lambda split=split: self._split(split) for split in SEGNET_SPLITS}  # type: ignore[misc]  # default

    def _split(self, split: str) -> list[str]:
        if self.segnet:
            return [name for name, path in self.images.items() if path.parent.name == split]
        return [name for name in self.images if split_of(name) == split]


def split_of(name: str) -> str:
    """The split of SegNet (and of those who compare with it) that a frame belongs to.

    >>> split_of("0001TP_008520"), split_of("0001TP_008550"), split_of("0016E5_07959"), split_of("Seq05VD_f00000")
    ('train', 'test', 'val', 'test')
    """
    sequence, _, frame = name.partition("_")
    number = int(re.sub(r"\D", "", frame) or 0)
    if sequence == "Seq05VD" or (sequence == "0001TP" and number >= 8550):
        return "test"
    return "val" if sequence == "0016E5" and 7959 <= number <= 8159 else "train"
