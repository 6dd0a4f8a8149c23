"""A witness: what is known of unlabelled images from elsewhere, as a table of weights for siblings of the hierarchy.

    image,cat,dog,horse
    2007_000063,0.02,1,0.001
    2007_000175,0,0,1

In the first image a pixel of an animal is fifty times likelier to be of a dog than of a cat, as far as the witness can
tell; in the second it is of a horse. A classifier says such things, or a file name, or a person who tags photos. Images
that are not in the table are as if there were none.
"""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError, hint
from ..logic.hierarchy import Hierarchy
from .dataset import Dataset, ListRecord, Photo

Item = TypeVar("Item", bound=Photo)
LABELS = "labels"
"""Instead of a file: what the labelled images say, which training finds out when it begins."""
LEAST = 1e-6
"""Of a weight: a witness may be wrong, so nothing that it says is beyond doubt."""


@dataclass(frozen=True)
class Witness:
    concepts: tuple[str, ...]
    """That it weighs against their siblings."""
    heard: Mapping[str, tuple[float, ...]]
    """By image: the logarithm of a weight for each concept of the hierarchy, 0 where nothing is said."""
    record: ListRecord


def read_witness(path: Path, h: Hierarchy) -> Witness:
    try:
        text = path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: the table of a witness cannot be read ({error})") from None
    return parse_witness(text, path, h)


def parse_witness(text: str, path: Path, h: Hierarchy) -> Witness:
    """The text of a table, which is that of a file."""
    try:
        concepts, heard = _read(text, path, h)
    except csv.Error as error:
        raise DataError(f"{path}: the table of a witness is no CSV ({error})") from None
    fingerprint = hashlib.sha256(text.encode()).hexdigest()
    return Witness(concepts, heard, ListRecord(str(path), len(heard), fingerprint))


def _read(text: str, path: Path, h: Hierarchy) -> tuple[tuple[str, ...], dict[str, tuple[float, ...]]]:
    """The concepts, and what is heard of each image."""
    lines = csv.reader(io.StringIO(text))
    header = [name.strip() for name in next(lines, [])]
    concepts = _concepts(header, path, h)
    places = [h.names.index(name) for name in concepts]
    heard: dict[str, tuple[float, ...]] = {}
    for line in lines:
        if not line:
            continue
        if len(line) != len(header):
            raise DataError(
                f"{path}, line {lines.line_num}: {len(line)} columns, expected {len(header)} as in the first line"
            )
        name, row = line[0].strip(), np.zeros(len(h.names))
        if name in heard:
            raise DataError(f"{path}, line {lines.line_num}: the image {name!r} stands there twice")
        row[places] = np.log(np.maximum([_weight(word, path, lines.line_num) for word in line[1:]], LEAST))
        heard[name] = tuple(row.tolist())
    return concepts, heard


def with_witness(dataset: Dataset, witness: Witness) -> Dataset:
    """The same images, of which the unlabelled ones come with what the witness says of them."""
    lists = {**dataset.lists, "witness": witness.record}
    return replace(dataset, unlabeled=with_heard(dataset.unlabeled, witness), lists=lists, witness=witness.concepts)


def with_heard(photos: Iterable[Item], witness: Witness) -> tuple[Item, ...]:
    """Unlabelled images with what the witness says of each; a table that has none of them is a mistake."""
    told = tuple(replace(photo, heard=witness.heard.get(photo.name)) for photo in photos)
    if told and all(photo.heard is None for photo in told):
        some = next(iter(witness.heard), None)
        raise DataError(
            f"{witness.record.source}: none of the {len(told)} unlabelled images is in it, such as {told[0].name!r}"
            + (f"; it has {some!r}" if some else "; it has no line")
        )
    return told


def rows_of(photos: Sequence[Photo], concepts: int) -> NDArray[np.float32]:
    """What is heard of each, nothing where there is nothing: (photos, concepts)."""
    silent = (0.0,) * concepts
    return np.array([silent if photo.heard is None else photo.heard for photo in photos], np.float32)


def _concepts(header: list[str], path: Path, h: Hierarchy) -> tuple[str, ...]:
    if header[:1] != ["image"] or len(header) < 3:
        raise DataError(f"{path}: the first line is {','.join(header)!r}, expected image and the names of concepts")
    names = header[1:]
    for number, name in enumerate(names):
        if name not in h.names:
            raise DataError(f"{path}: there is no concept {name!r} in the hierarchy{hint(name, h.names)}")
        if name in names[:number]:
            raise DataError(f"{path}: the concept {name!r} has two columns")
    for name in names:
        if not any(h.parent(other) == h.parent(name) for other in names if other != name):
            above = h.parent(name) or "the top"
            raise DataError(
                f"{path}: {name!r} is alone below {above}, expected its siblings, too: a witness tells siblings apart"
            )
    return tuple(names)


def _weight(word: str, path: Path, line: int) -> float:
    try:
        value = float(word)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise DataError(f"{path}, line {line}: a weight is {word!r}, expected a number of at least 0")
    return value
