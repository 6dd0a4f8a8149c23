"""Lists of images in the formats that are in use, and their fingerprints.

One image per line: a bare name (PseudoSeg, CPS, VOC), a path, or the paths of image and mask (U2PL, UniMatch, CPS,
SegNet). Blank lines are passed over, and so are comments: from a `#` that begins a line, or stands between spaces.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ..errors import DataError
from .files import without_suffix
from .known import KNOWN

MASK_SUFFIXES = (".png", ".mat")
CITYSCAPES_SUFFIX = "_leftImg8bit"
COLUMNS = re.compile(r"(\S+)(?:\s+\d+){3}")  # Oxford-IIIT Pet: class, species and breed after the name


@dataclass(frozen=True)
class Entry:
    """A line of a list: an image as it is written there, and its mask if that is written, too."""

    image: str
    mask: str | None = None

    @property
    def bare(self) -> str:
        """The image's name alone.

        >>> Entry("leftImg8bit/train/ulm/ulm_000000_000019_leftImg8bit.png").bare
        'ulm_000000_000019'
        """
        return without_suffix(PurePosixPath(self.image.replace("\\", "/")).name).removesuffix(CITYSCAPES_SUFFIX)


def read_list(path: Path, columns: bool = False) -> list[Entry]:
    try:
        text = path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read as a list of images: {_reason(error)}") from None
    if "\0" in text:
        raise DataError(f"{path}: is not text, expected one image per line")
    entries = parse_list(text, columns)
    if not entries:
        raise DataError(f"{path}: the list is empty, expected one image per line")
    return entries


def parse_list(text: str, columns: bool = False) -> list[Entry]:
    """The entries of a list, in its order; duplicates are kept. With `columns`, numbers may follow a name.

    >>> parse_list("# VOC\\n2007_000063\\r\\nJPEGImages/a.jpg SegmentationClass/a.png")
    [Entry(image='2007_000063', mask=None), Entry(image='JPEGImages/a.jpg', mask='SegmentationClass/a.png')]
    """
    entries = []
    for line in text.splitlines():
        line = re.split(r"\s#\s", line)[0].strip()
        if line and not line.startswith("#"):
            entries.append(_entry(line, columns))
    return entries


def _entry(line: str, columns: bool) -> Entry:
    if "\t" in line:
        image, _, mask = line.partition("\t")
        return Entry(image.strip(), mask.strip() or None)
    if columns and (match := COLUMNS.fullmatch(line)):
        return Entry(match[1])
    image, _, mask = line.rpartition(" ")
    # A name may hold spaces: only what looks like two paths is a pair.
    if image and mask.lower().endswith(MASK_SUFFIXES) and without_suffix(image.strip()) != image.strip():
        return Entry(image.strip(), mask)
    return Entry(line)


def fingerprint(names: Iterable[str]) -> str:
    """One SHA-256 for all lists of the same images, in whatever order and format.

    >>> fingerprint(["b", "a"]) == fingerprint(["images/a.jpg", "images/b.jpg"])
    True
    """
    bare = sorted(Entry(name).bare for name in set(names))
    return hashlib.sha256("".join(f"{name}\n" for name in bare).encode()).hexdigest()


def order_of(names: Iterable[str]) -> str:
    """One SHA-256 for the same names, folders included, in the same order.

    >>> order_of(["a", "b"]) == order_of(["b", "a"]), order_of(["x/a"]) == order_of(["y/a"])
    (False, False)
    """
    return hashlib.sha256("".join(f"{name}\n" for name in names).encode()).hexdigest()


def known_name(print_: str) -> str | None:
    """The published list that has this fingerprint."""
    return KNOWN.get(print_)


def _reason(error: Exception) -> str:
    return (error.strerror or str(error)).lower() if isinstance(error, OSError) else "it is not UTF-8 text"
