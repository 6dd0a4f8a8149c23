"""Oxford-IIIT Pet as images.tar.gz and annotations.tar.gz unpack."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from ...errors import DataError, hint
from ...logic.hierarchy import Hierarchy
from ..files import IndexMask, MaskSource
from .base import Layout, fold

PET, BACKGROUND, BORDER = 1, 2, 3
NOT_BREEDS = ("background",)


class OxfordPets(Layout):
    """
    images/Breed_name_12.jpg
    annotations/trimaps/Breed_name_12.png   1 pet, 2 background, 3 border
    annotations/list.txt, trainval.txt, test.txt

    A pixel is of the image's breed, or background; the border is ignored.
    """

    title = "oxford_pets"
    mask_folders = ("annotations/trimaps",)
    split_folders = ("annotations", "splits")
    columns = True  # class, species and breed
    shape = "images/, annotations/trimaps/ and annotations/trainval.txt"

    @cached_property
    def breeds(self) -> dict[str, str]:
        leaves = Hierarchy.load(self.title).leaves
        return {fold(leaf): leaf for leaf in leaves if leaf not in NOT_BREEDS}

    def class_names(self) -> list[str]:
        return [*NOT_BREEDS, *self.breeds.values()]

    def classes(self, kind: str = "") -> Mapping[int, str | None]:
        return {PET: kind, BACKGROUND: NOT_BREEDS[0], BORDER: None}

    def mask_source(self, name: str, written: str | None) -> tuple[MaskSource, str]:
        breed = name.rpartition("_")[0]
        if fold(breed) not in self.breeds:
            near = hint(breed, self.breeds.values())
            raise DataError(f"{self.images[name]}: {breed!r} is no breed of Oxford-IIIT Pet{near}")
        return IndexMask(self.root / self.mask_folders[0] / f"{name}.png"), self.breeds[fold(breed)]

    @property
    def train(self) -> str:
        return "train" if "train" in self.list_files else "trainval"
