"""Layouts of data sets on disk, one module each."""

from __future__ import annotations

from .base import Layout, fold, restricted
from .camvid import CamVid
from .cityscapes import Cityscapes
from .coco import Coco
from .folder import Folder
from .oxford_pets import OxfordPets
from .voc2012 import Voc2012

LAYOUTS: dict[str, type[Layout]] = {
    "folder": Folder,
    "voc2012": Voc2012,
    "cityscapes": Cityscapes,
    "coco": Coco,
    "camvid": CamVid,
    "oxford_pets": OxfordPets,
}

__all__ = ["LAYOUTS", "Layout", "fold", "restricted"]
