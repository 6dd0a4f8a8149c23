"""Small archives of each layout, as the real ones unpack."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

FOLDER_CLASSES = ["bird", "cat", "car", "sky"]
FOLDER_TREE = "hierarchy:\n  sky:\n  animal: [bird, cat]\n  car:\n"  # leaves: sky, bird, cat, car
CAMBRIDGE = (
    "64 128 64\tAnimal\n128 128 128\tSky\n128 64 128\tRoad\n64 0 128\tCar\n0 0 0\tVoid\n192 128 128\tSignSymbol\n"
)


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    return path


def photo(
    path: Path, height: int = 4, width: int = 6, colour: tuple[int, ...] = (200, 30, 40), mode: str = "RGB"
) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (width, height), colour).convert(mode).save(path)
    return path


def mask(path: Path, rows: Sequence[Sequence[Any]] | int, palette: bool = False, dtype: Any = np.uint8) -> Path:
    """Rows of ids or of colours, each pixel of a 2 x 3 mask grown to 2 x 2; or one id for a 4 x 6 mask."""
    path.parent.mkdir(parents=True, exist_ok=True)
    ids = np.full((2, 3), rows) if isinstance(rows, int) else np.array(rows)
    image = Image.fromarray(ids.astype(dtype).repeat(2, 0).repeat(2, 1))
    if palette:
        image.putpalette([i % 256 for i in range(768)])
    image.save(path)
    return path


def folder(root: Path, train: Sequence[str] = ("a", "b", "c", "d"), val: Sequence[str] = ("v",)) -> Path:
    """Every image has a mask: ids 0 1 2 / 3 255 0, so every class occurs."""
    write(root / "dataset.yaml", f"classes: [{', '.join(FOLDER_CLASSES)}]\nignore: 255\n{FOLDER_TREE}")
    for name in (*train, *val):
        photo(root / f"images/{name}.jpg")
        mask(root / f"masks/{name}.png", [[0, 1, 2], [3, 255, 0]], palette=True)
    write(root / "splits/train.txt", "\n".join(train))
    write(root / "splits/val.txt", "\n".join(val))
    return root


def voc(root: Path, aug: bool = True) -> Path:
    """2007_1 and 2007_2 are fine, 2008_1 and 2008_2 are SBD's, 2007_9 is val and in SBD, too."""
    for name in ("2007_1", "2007_2", "2008_1", "2008_2", "2007_9"):
        photo(root / f"JPEGImages/{name}.jpg")
        if name.startswith("2007"):
            mask(root / f"SegmentationClass/{name}.png", [[0, 15, 255], [8, 12, 20]], palette=True)
        if aug:
            mask(root / f"SegmentationClassAug/{name}.png", [[0, 0, 255], [8, 12, 20]])
    write(root / "ImageSets/Segmentation/train.txt", "2007_1\n2007_2\n")
    write(root / "ImageSets/Segmentation/val.txt", "2007_9\n")
    return root


def cityscapes(root: Path, kinds: Sequence[str] = ("labelIds",)) -> Path:
    for split, city, count in (("train", "ulm", 3), ("train", "jena", 1), ("val", "lindau", 1)):
        for i in range(count):
            name = f"{city}_00000{i}_000019"
            photo(root / f"leftImg8bit/{split}/{city}/{name}_leftImg8bit.png")
            for kind in kinds:
                ids = [[7, 26, 0], [33, 3, 23]] if kind == "labelIds" else [[0, 13, 255], [18, 255, 10]]
                mask(root / f"gtFine/{split}/{city}/{name}_gtFine_{kind}.png", ids)
            photo(root / f"gtFine/{split}/{city}/{name}_gtFine_color.png")
    return root


def coco(root: Path, annotations: Mapping[int, Sequence[dict[str, Any]]], val: int = 9) -> Path:
    """Images 1 to 3 are in train2017, `val` in val2017; 4 x 6 pixels each."""
    categories = [{"id": 1, "name": "person"}, {"id": 18, "name": "dog"}, {"id": 10, "name": "traffic light"}]
    for split, numbers in (("train2017", (1, 2, 3)), ("val2017", (val,))):
        for i in numbers:
            photo(root / f"{split}/{i:012}.jpg")
        images = [{"id": i, "file_name": f"{i:012}.jpg", "height": 4, "width": 6} for i in numbers]
        things = [{"image_id": i, **thing} for i in numbers for thing in annotations.get(i, [])]
        data = {"images": images, "categories": categories, "annotations": things}
        write(root / f"annotations/instances_{split}.json", json.dumps(data))
    return root


def camvid_cambridge(root: Path) -> Path:
    sky, road, car, animal, sign = (128, 128, 128), (128, 64, 128), (64, 0, 128), (64, 128, 64), (192, 128, 128)
    for name in ("0001TP_006690", "0006R0_f00930", "0016E5_07959", "0016E5_08190", "Seq05VD_f00000", "0001TP_008550"):
        photo(root / f"701_StillsRaw_full/{name}.png")
        mask(root / f"LabeledApproved_full/{name}_L.png", [[sky, sky, sign], [road, car, animal]])
    names = "Archway Bicyclist Building CartLuggagePram Child Column_Pole Fence LaneMkgsDriv Misc_Text ParkingBlock"
    more = "Pedestrian RoadShoulder Sidewalk SUVPickupTruck TrafficLight Tree Truck_Bus VegetationMisc Wall"
    rest = "".join(f"1 2 {i}\t\t{name}\n" for i, name in enumerate(f"{names} {more}".split()))
    write(root / "label_colors.txt", CAMBRIDGE + rest)
    return root


def camvid_segnet(root: Path) -> Path:
    for split, name in (("train", "0001TP_006690"), ("train", "0001TP_006720"), ("val", "0016E5_07959"), ("test", "x")):
        photo(root / f"{split}/{name}.png")
        mask(root / f"{split}annot/{name}.png", [[0, 1, 2], [11, 8, 10]])
    return root


def pets(root: Path) -> Path:
    names = ("Abyssinian_1", "american_pit_bull_terrier_12", "pug_3", "Egyptian_Mau_7")
    for name in names:
        photo(root / f"images/{name}.jpg")
        mask(root / f"annotations/trimaps/{name}.png", [[1, 1, 2], [3, 2, 2]])
    lines = [f"{name} {i + 1} 1 1" for i, name in enumerate(names)]
    write(root / "annotations/list.txt", "#Image CLASS-ID SPECIES BREED ID\n#ID: 1:37\n" + "\n".join(lines))
    write(root / "annotations/trainval.txt", "\n".join(lines[:3]) + "\n")
    write(root / "annotations/test.txt", lines[3] + "\n")
    return root
