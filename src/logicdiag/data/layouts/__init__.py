"""Layouts of data sets on disk, one module each."""

from __future__ import annotations

from .base import Layout, fold, restricted
from .folder import Folder

LAYOUTS: dict[str, type[Layout]] = {"folder": Folder}

__all__ = ["LAYOUTS", "Layout", "fold", "restricted"]
