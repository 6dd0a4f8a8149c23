"""A table of what the encoder's classifier says about unlabelled images: each concept's weight beside its siblings.

A person knows that a tabby is a cat (`tabby(x) -> cat(x)`), the classifier knows tabbies. A concept scores the mean of
its classes, `logsumexp(logits) - log(count)`, and weighs `exp(t * (score - the best score among its siblings))`. How
far scores are to be trusted, `t`, is what makes the labelled images likeliest. `data/witness.py` reads the table.
"""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from ..data.dataset import IGNORE, Dataset, Masked, Photo
from ..data.open import open_dataset
from ..errors import ConfigError, DataError
from ..files import Progress, written_whole
from ..logic.hierarchy import Hierarchy
from ..models.classifier import build_classifier
from .classes import Classes, Siblings, read_classes, siblings_among
from .config import Config
from .distributed import choose_device
from .inference import SMALLEST

SIZE = 288
"""Of an image's short side; a classifier trained at 224 pixels sees best at somewhat more."""
FACTORS = (0.25, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0, 5.6, 8.0)
"""What `t` may be."""

Array = NDArray[np.float64]
Ask = Callable[[Photo], Array]
"""The score of each concept in an image."""


@dataclass(frozen=True)
class Trust:
    """How far the witness is trusted about some siblings, and why."""

    siblings: Siblings
    factor: float
    images: int
    """Labelled images that show one of them."""
    right: int
    """Of those: the likeliest concept is the one with most pixels."""

    def __str__(self) -> str:
        name = f"{self.siblings.parent or 'the top level'} ({', '.join(self.siblings.children)})"
        if not self.images:
            return f"{name}: t = 1, since no labelled image shows any of them"
        bound = {FACTORS[0]: ", the least that is tried", FACTORS[-1]: ", the most that is tried"}.get(self.factor, "")
        images = f"{self.images} labelled image{'s' * (self.images != 1)}"
        return f"{name}: t = {self.factor:g}{bound}; right about {self.right} of {images}"


@dataclass(frozen=True)
class WitnessTable:
    """What the witness says about each unlabelled image."""

    concepts: tuple[str, ...]
    names: tuple[str, ...]
    weights: Array
    """(images, concepts); the likeliest sibling has 1."""
    trust: tuple[Trust, ...]

    def __str__(self) -> str:
        count = f"{len(self.names)} unlabelled image{'s' * (len(self.names) != 1)}"
        return "\n".join([count, *map(str, self.trust)])

    def write(self, out: Path) -> None:
        """As CSV, whole or not at all."""
        out.parent.mkdir(parents=True, exist_ok=True)
        with written_whole([out]) as [part], open(part, "w", encoding="utf-8", newline="") as file:
            rows = csv.writer(file, lineterminator="\n")
            rows.writerow(["image", *self.concepts])
            for name, weights in zip(self.names, self.weights.tolist(), strict=True):
                rows.writerow([name, *(f"{weight:.4g}" for weight in weights)])


def make_witness(
    config: Config,
    classes: str | Path,
    base: Path | None = None,
    size: int = SIZE,
    progress: Progress = lambda what, done, total: None,
) -> WitnessTable:
    """Ask the classifier of `config.model` about the images of `config.data`; `classes` is the file that says which of
    its classes are which concept. Masks are opened of labelled images alone.
    """
    if size < SMALLEST:
        raise ConfigError(f"--size is {size}, expected at least {SMALLEST} pixels")
    device = choose_device(config.train.device)
    dataset = open_dataset(replace(config.data, witness=None), base)  # it may name the very table that is made here
    _check_images(dataset)
    classifier = build_classifier(config.model, base).to(device)
    chosen = read_classes(classes, dataset.hierarchy, classifier.classes)

    @torch.inference_mode()
    def ask(photo: Photo) -> Array:
        image = torch.from_numpy(photo.image()).to(device).permute(2, 0, 1)[None].float() / 255
        return concept_scores(classifier(_resized(image, size))[0], chosen)

    return weigh(dataset, chosen, ask, progress)


def weigh(dataset: Dataset, classes: Classes, ask: Ask, progress: Progress) -> WitnessTable:
    """Trust by the labelled images, then weights of the unlabelled ones."""
    concepts, groups = list(classes), siblings_among(classes, dataset.hierarchy)
    pixels = np.zeros((len(dataset.labeled), len(concepts)), np.int64)
    for row, item in zip(pixels, dataset.labeled, strict=True):
        row[:] = pixels_of(item, concepts, dataset.hierarchy)
    labeled = _scores(dataset.labeled, len(concepts), ask, "labelled images", progress)
    unlabeled = _scores(dataset.unlabeled, len(concepts), ask, "unlabelled images", progress)
    weights = np.empty_like(unlabeled)
    trust = []
    for group in groups:
        columns = [concepts.index(name) for name in group.children]
        trust.append(calibrate(group, labeled[:, columns], pixels[:, columns]))
        scores = unlabeled[:, columns]
        weights[:, columns] = np.exp(trust[-1].factor * (scores - scores.max(1, keepdims=True)))
    return WitnessTable(tuple(concepts), tuple(photo.name for photo in dataset.unlabeled), weights, tuple(trust))


def concept_scores(logits: Tensor, classes: Classes) -> Array:
    """The logarithm of the mean of exp(logit) over the classes of each concept.

    >>> concept_scores(torch.tensor([0.0, 2.0, 2.0]), {"cat": (0,), "dog": (1, 2)})
    array([0., 2.])
    """
    logits = logits.double().cpu()
    return np.array([float(logits[list(n)].logsumexp(0)) - math.log(len(n)) for n in classes.values()])


def calibrate(siblings: Siblings, scores: Array, pixels: NDArray[np.int64]) -> Trust:
    """The factor that makes the truth likeliest, by a softmax over the siblings; both arrays are (images, siblings).

    The truth of an image is the sibling with most pixels; an image that shows none says nothing. Of equals the smaller
    factor is taken, and 1 if no image says anything. To the images comes one more, which shows any of the siblings: a
    witness that was right about two is not to be trusted without end.
    """
    telling = pixels.any(1)
    scores, truth = scores[telling], pixels[telling].argmax(1)
    if not len(truth):
        return Trust(siblings, 1.0, 0, 0)
    x = torch.from_numpy(scores)
    y, any_of_them = torch.from_numpy(truth), 1 / (len(truth) + 1)
    loss = [float(F.cross_entropy(factor * x, y, label_smoothing=any_of_them)) for factor in FACTORS]
    return Trust(siblings, FACTORS[loss.index(min(loss))], len(truth), int((scores.argmax(1) == truth).sum()))


def pixels_of(item: Masked, concepts: Iterable[str], h: Hierarchy) -> list[int]:
    """How many pixels of the mask each concept has, its leaves together."""
    counts = np.bincount(item.mask().ravel(), minlength=IGNORE + 1)[: len(h.leaves)]
    return [sum(int(n) for n, leaf in zip(counts, h.leaves, strict=True) if name in h.path(leaf)) for name in concepts]


def check_out(out: Path) -> None:
    """Refuse what could not be written in the end."""
    if out.is_dir():
        raise ConfigError(f"--out is {out}, a folder; expected a file to write, such as {out / 'witness.csv'}")
    above = next(folder for folder in out.absolute().parents if folder.exists())
    if not above.is_dir() or not os.access(above, os.W_OK):
        raise ConfigError(f"--out is {out}, and {above} is {'not to be written to' if above.is_dir() else 'no folder'}")


def _check_images(dataset: Dataset) -> None:
    if not dataset.unlabeled:
        raise DataError("data.unlabeled names no image, and a witness speaks about unlabelled ones")
    seen: dict[str, Photo] = {}
    for photo in dataset.unlabeled:
        if (other := seen.setdefault(photo.name, photo)) is not photo:
            both = f"{other.where} and {photo.where}"
            raise DataError(f"data.unlabeled: {both} have one name, {photo.name!r}; the table goes by names")


def _scores(photos: Sequence[Photo], concepts: int, ask: Ask, what: str, progress: Progress) -> Array:
    scores = np.zeros((len(photos), concepts))
    for number, photo in enumerate(photos):
        scores[number] = ask(photo)
        if not np.isfinite(scores[number]).all():
            raise DataError(f"{photo.where}: the classifier says nothing finite about it; are its weights whole?")
        progress(what, number + 1, len(photos))
    return scores


def _resized(image: Tensor, size: int) -> Tensor:
    """With a short side of `size`; bicubic, as classifiers were trained."""
    height, width = image.shape[-2:]
    scale = size / min(height, width)
    shape = (max(size, round(height * scale)), max(size, round(width * scale)))
    return F.interpolate(image, shape, mode="bicubic", align_corners=False, antialias=True).clamp(0, 1)
