"""Image files and mask files, read when they are asked for."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from ..errors import DataError
from .dataset import LeafTable

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".tif", ".tiff", ".webp")
BROKEN = (OSError, SyntaxError, ValueError, EOFError, struct.error, zlib.error, Image.DecompressionBombError)
"""What Pillow raises on files that are damaged or too large."""
UPRIGHT = (None, 0, 1)
TRANSPOSED = (5, 6, 7, 8)  # EXIF orientations that exchange height and width


class ColourMaskError(DataError):
    """A mask of colours where indices are wanted."""


class MaskSource(Protocol):
    """A mask in its file's own ids."""

    @property
    def path(self) -> Path: ...

    def ids(self) -> NDArray[Any]: ...

    def size(self) -> tuple[int, int]: ...


@dataclass(frozen=True)
class Labels:
    """A mask as indices of leaves."""

    file: MaskSource
    table: LeafTable

    @property
    def path(self) -> Path:
        return self.file.path

    def __call__(self) -> NDArray[np.uint8]:
        return self.table.apply(self.file.ids(), str(self.path))


@dataclass(frozen=True)
class ImageFile:
    """An image as RGB, whatever it is stored as.

    A photo that its camera marks as turned is turned upright. With `mask` given this is done only if the mask has the
    size of the upright image and not of the stored one: masks are drawn on either.
    """

    path: Path
    mask: MaskSource | None = None

    def __call__(self) -> NDArray[np.uint8]:
        with opened(self.path) as image:
            # Old releases of Pillow give 16-bit PNG files the mode I, too; a PNG file has no more bits than that.
            if image.mode == "F" or (image.mode == "I" and image.format != "PNG"):
                raise DataError(
                    f"{self.path}: an image of {'floating-point' if image.mode == 'F' else '32-bit or signed'} numbers "
                    f"(mode {image.mode}), and which of them is white is not known; "
                    "expected 8 bits per channel, or 16 bits without a sign"
                )
            if self._turn(image):
                image = ImageOps.exif_transpose(image)
            return np.array(_rgb(image))

    def size(self) -> tuple[int, int]:
        """Height and width, from the file's head alone."""
        with opened(self.path) as image:
            turned = self._turn(image) and _orientation(image) in TRANSPOSED
            return (image.width, image.height) if turned else (image.height, image.width)

    def untold(self) -> bool:
        """Whether the camera marks the image as turned, and its mask fits either way; it is then left as it is stored.

        Half turns and mirrored images keep their size, and so do square ones.
        """
        with opened(self.path) as image:
            orientation = _orientation(image)
            if self.mask is None or orientation in UPRIGHT:
                return False
            return orientation not in TRANSPOSED or image.height == image.width

    def _turn(self, image: Image.Image) -> bool:
        orientation = _orientation(image)
        if orientation in UPRIGHT:
            return False
        if self.mask is None:
            return True
        size = self.mask.size()
        stored = (image.height, image.width)
        return size != stored and orientation in TRANSPOSED and size == stored[::-1]


@dataclass(frozen=True)
class IndexMask:
    """A mask of indices: 8-bit gray or palette, or 16-bit gray."""

    path: Path

    def ids(self) -> NDArray[Any]:
        with opened(self.path, "a mask") as image:
            if image.mode not in ("L", "P", "1") and not image.mode.startswith("I"):
                raise ColourMaskError(
                    f"{self.path}: a colour mask (mode {image.mode}), and colours are not indices; "
                    "expected 8-bit gray or palette with one class index per pixel"
                )
            return np.array(image, dtype=np.uint8 if image.mode in ("L", "P", "1") else np.int32)

    def size(self) -> tuple[int, int]:
        with opened(self.path, "a mask") as image:
            return image.height, image.width


@dataclass(frozen=True)
class ColourMask:
    """A mask of colours; an id is the number that its red, green and blue write together."""

    path: Path

    def ids(self) -> NDArray[Any]:
        with opened(self.path, "a mask") as image:
            rgb = np.array(image.convert("RGB"), dtype=np.int32)
        return (rgb[..., 0] << 16) | (rgb[..., 1] << 8) | rgb[..., 2]

    def size(self) -> tuple[int, int]:
        with opened(self.path, "a mask") as image:
            return image.height, image.width


@contextmanager
def opened(path: Path, what: str = "an image") -> Iterator[Image.Image]:
    """The image in a file; what is wrong with it is told in a sentence."""
    try:
        with Image.open(path) as image:
            yield image
    except DataError:
        raise
    except FileNotFoundError:
        raise DataError(f"{path}: there is no such file") from None
    except UnidentifiedImageError:
        raise DataError(f"{path}: cannot be read as {what}; it is in no format that is known") from None
    except BROKEN as error:
        raise DataError(f"{path}: cannot be read as {what}: {error}") from None


def is_image(path: str | Path) -> bool:
    name = os.path.basename(path)
    return name.lower().endswith(IMAGE_SUFFIXES) and not name.startswith(".")


def without_suffix(name: str) -> str:
    """The name without the suffix of an image; a dot elsewhere in a name is left alone.

    >>> without_suffix("a/b.1.JPG"), without_suffix("v1.2")
    ('a/b.1', 'v1.2')
    """
    stem, suffix = os.path.splitext(name)
    return stem if suffix.lower() in IMAGE_SUFFIXES else name


def walk(folder: Path) -> list[Path]:
    """Every image under a folder, sorted; hidden files and folders are passed over."""
    found = []
    for parent, folders, files in os.walk(folder, followlinks=True):
        folders[:] = sorted(f for f in folders if not f.startswith("."))
        found += [Path(parent, name) for name in files if is_image(name)]
    return sorted(found)


def _orientation(image: Image.Image) -> int | None:
    return image.getexif().get(ExifTags.Base.Orientation)


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):  # 16 bits; Pillow would cut them off at 255
        return Image.fromarray((np.array(image, dtype=np.int32) >> 8).clip(0, 255).astype(np.uint8)).convert("RGB")
    if "transparency" in image.info:
        image = image.convert("RGBA")
    return image.convert("RGB")
