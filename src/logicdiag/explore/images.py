"""The images that may be looked at, each by an id: those that were given, and those that were dropped in."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from ..data.dataset import Photo
from ..data.files import BROKEN, ImageFile, opened, walk
from ..engine.run import Run
from ..errors import DataError
from ..report.look import find_image, validation

DROPPED = 16
"""Images dropped in that are kept; the oldest goes first."""
MOST_BYTES = 64 << 20
"""Of a file that is dropped in."""
MOST_PIXELS = 60_000_000
SIDE = 1024
"""The longer side of an image dropped in; larger ones are made smaller."""
FORMATS = ("JPEG", "PNG", "BMP", "TIFF", "WEBP")
"""Of images dropped in. Pillow knows more, some of which start other programs."""
NAME = 120
"""Characters of a name."""


class UnknownImage(DataError):
    """An id that no image has."""


@dataclass(frozen=True)
class Within:
    """An image file below a folder; read only while it lies there, links followed."""

    path: Path
    folder: Path

    def lies_there(self) -> bool:
        return self.path.resolve().is_relative_to(self.folder.resolve())

    def __call__(self) -> NDArray[np.uint8]:
        if not self.lies_there():
            raise DataError(f"{self.path}: leads out of the folder {self.folder}")
        return ImageFile(self.path)()


def given_images(run: Run, given: Sequence[str]) -> list[Photo]:
    """Of files, names in the run's data, and folders with all below them, each once, without their masks.

    Where none are given, those that the run is validated on.
    """
    if not given:
        photos = [item.bare() for item in validation(run)]
        if not photos:
            raise DataError(f"{run.path}: the run has no validation images (data.val); name images or a folder of them")
        return photos
    found: dict[str, Photo] = {}
    for name in given:
        if Path(name).is_file():
            with opened(Path(name)):  # what is no image is told now, and not when it is looked at
                pass
        for photo in _below(Path(name)) if Path(name).is_dir() else [find_image(run, name)]:
            found.setdefault(os.path.realpath(photo.where), Photo(photo.name, photo.source))
    return list(found.values())


def _below(folder: Path) -> list[Photo]:
    files = [Within(path, folder) for path in walk(folder)]
    inside = [Photo(one.path.relative_to(folder).as_posix(), one) for one in files if one.lies_there()]
    if not inside:
        raise DataError(f"{folder}: there is no image in the folder")
    return inside


class Shelf:
    """Images by id. Nothing else can be read: an id is not a path."""

    def __init__(self, photos: Sequence[Photo]) -> None:
        self._given = {f"g{number}": photo for number, photo in enumerate(photos)}
        self._dropped: dict[str, Photo] = {}
        self._count = 0
        self._lock = Lock()

    def names(self) -> dict[str, str]:
        """By id; what was dropped in comes last."""
        with self._lock:
            return {key: photo.name for key, photo in (self._given | self._dropped).items()}

    def photo(self, key: str) -> Photo:
        with self._lock:
            photo = self._given.get(key) or self._dropped.get(key)
        if photo is None:
            raise UnknownImage(f"there is no image {key[:NAME]!r} here")
        return photo

    def drop(self, name: str, data: bytes) -> str:
        """Keeps an image in memory and gives it an id."""
        name = Path(name.replace("\\", "/")).name[:NAME] or "image"
        photo = Photo(name, Held(decoded(name, data)))
        with self._lock:
            key = f"d{self._count}"
            self._count += 1
            self._dropped[key] = photo
            while len(self._dropped) > DROPPED:
                del self._dropped[next(iter(self._dropped))]
        return key


@dataclass(frozen=True, eq=False)
class Held:
    """An image in memory."""

    pixels: NDArray[np.uint8]

    def __call__(self) -> NDArray[np.uint8]:
        return self.pixels


def decoded(name: str, data: bytes) -> NDArray[np.uint8]:
    """Bytes that came from anywhere, as an upright RGB image of moderate size."""
    if len(data) > MOST_BYTES:
        raise DataError(f"{name}: has more than {MOST_BYTES >> 20} MB; give large files on the command line")
    return _told(name, lambda: _decoded(name, data))


def _decoded(name: str, data: bytes) -> NDArray[np.uint8]:
    with Image.open(io.BytesIO(data), formats=FORMATS) as image:
        if image.width * image.height > MOST_PIXELS:
            raise DataError(f"{name}: has {image.width} x {image.height} pixels, at most {MOST_PIXELS:,} are taken")
        if image.mode == "F" or image.mode.startswith("I"):
            raise DataError(f"{name}: has more than 8 bits per channel (mode {image.mode}); expected 8")
        upright = ImageOps.exif_transpose(image)
        if "transparency" in upright.info:
            upright = upright.convert("RGBA")
        rgb = upright.convert("RGB")
    if max(rgb.size) > SIDE:
        rgb.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    return np.array(rgb)


def _told(name: str, read: Callable[[], NDArray[np.uint8]]) -> NDArray[np.uint8]:
    try:
        return read()
    except DataError:
        raise
    except UnidentifiedImageError:
        raise DataError(f"{name}: is not an image; expected one of {', '.join(FORMATS)}") from None
    except (*BROKEN, Image.DecompressionBombWarning) as error:
        raise DataError(f"{name}: cannot be read as an image: {error}") from None
