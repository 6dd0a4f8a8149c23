"""A table of what the encoder's classifier says about unlabelled images: each concept's weight beside its siblings.

A person knows that a tabby is a cat (`tabby(x) -> cat(x)`), the classifier knows tabbies. A concept scores the mean of
its classes, `logsumexp(logits) - log(count)`, and weighs `exp(t * (score - the best score among its siblings))`. How
far scores are to be trusted, `t`, is what makes the labelled images likeliest. `data/witness.py` reads the table.
"""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from ..data.dataset import IGNORE, Dataset, Masked
from ..errors import ConfigError, DataError
from ..files import Progress, written_whole
from ..logic.hierarchy import Hierarchy
from .asking import SIZE, Logits, open_asking
from .classes import Classes, Siblings, read_classes, siblings_among
from .config import Config

FACTORS = (0.25, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0, 5.6, 8.0)
"""What `t` may be."""

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Trust:
    """How far the witness is trusted about some siblings, and why."""

    siblings: Siblings
    factor: float
    images: int
    """Labelled images that show one of them."""
    right: int
    """Of those: the likeliest concept is the one with most pixels."""
    tried: tuple[float, float] = (FACTORS[0], FACTORS[-1])
    """The least and the greatest factor that was."""

    def __str__(self) -> str:
        name = f"{self.siblings.parent or 'the top level'} ({', '.join(self.siblings.children)})"
        images = f"{self.images} labelled image{'s' * (self.images != 1)}"
        if not self.factor:
            return f"{name}: nothing is said; what {images} would say may be chance"
        if not self.images:
            return f"{name}: t = 1, since no labelled image shows any of them"
        least, most = self.tried
        bound = {least: ", the least that is tried", most: ", the most that is tried"}.get(self.factor, "")
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

    def text(self) -> str:
        """As CSV."""
        file = io.StringIO()
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["image", *self.concepts])
        for name, weights in zip(self.names, self.weights.tolist(), strict=True):
            rows.writerow([name, *(f"{weight:.4g}" for weight in weights)])
        return file.getvalue()

    def write(self, out: Path) -> None:
        """Whole or not at all."""
        if not self.concepts:
            why = "; ".join(map(str, self.trust)) or "the hierarchy has no siblings below a concept"
            raise DataError(f"{out} is not written, because there is nothing to say: {why}")
        out.parent.mkdir(parents=True, exist_ok=True)
        with written_whole([out]) as [part]:
            part.write_bytes(self.text().encode())


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
    asking = open_asking(config, base, size)
    chosen = read_classes(classes, asking.dataset.hierarchy, asking.classifier.classes)
    return weigh(asking.dataset, chosen, asking.logits(progress))


def weigh(dataset: Dataset, classes: Classes, logits: Logits) -> WitnessTable:
    """Trust by the labelled images, whose logits come first, then weights of the unlabelled ones."""
    concepts, groups = list(classes), siblings_among(classes, dataset.hierarchy)
    scores = concept_scores(logits, classes)
    labeled, unlabeled = np.split(scores, [len(dataset.labeled)])
    pixels = np.array([pixels_of(item, concepts, dataset.hierarchy) for item in dataset.labeled], np.int64)
    pixels = pixels.reshape(len(dataset.labeled), len(concepts))
    weights = np.empty_like(unlabeled)
    trust = []
    for group in groups:
        columns = [concepts.index(name) for name in group.children]
        trust.append(calibrate(group, labeled[:, columns], pixels[:, columns]))
        weights[:, columns] = beside_best(trust[-1].factor * unlabeled[:, columns])
    return WitnessTable(tuple(concepts), tuple(photo.name for photo in dataset.unlabeled), weights, tuple(trust))


def beside_best(scores: Array) -> Array:
    """Weights of siblings, of which the likeliest has 1; rows are images."""
    weights: Array = np.exp(scores - scores.max(1, keepdims=True))
    return weights


def concept_scores(logits: Logits, classes: Classes) -> Array:
    """The logarithm of the mean of exp(logit) over the classes of each concept; rows are images.

    >>> concept_scores(np.array([[0.0, 2.0, 2.0]]), {"cat": (0,), "dog": (1, 2)})
    array([[0., 2.]])
    """
    wide = torch.from_numpy(logits).double()
    means = [wide[:, list(numbers)].logsumexp(1) - math.log(len(numbers)) for numbers in classes.values()]
    return torch.stack(means, 1).numpy()


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
