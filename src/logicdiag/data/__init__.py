"""Data sets, splits, weak and strong views, and the built-in scenes."""

from .config import DataConfig, ScenesConfig, ViewConfig
from .dataset import IGNORE, Dataset, ListRecord, Masked, Photo
from .open import open_dataset

__all__ = [
    "IGNORE",
    "DataConfig",
    "Dataset",
    "ListRecord",
    "Masked",
    "Photo",
    "ScenesConfig",
    "ViewConfig",
    "open_dataset",
]
