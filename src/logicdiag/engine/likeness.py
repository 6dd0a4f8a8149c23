"""A witness that needs nothing but the labelled images: which siblings an unlabelled image looks like.

The encoder was trained as a classifier, and what it takes an image for, p over its classes, is a portrait of the image:
sqrt(p), less the mean over all images, of length 1, so that the product of two portraits says how alike they are
(Bhattacharyya). A concept's portrait is the mean of the labelled images that show it, each by the concept's share of
the siblings' pixels. Its score in an image is the product of both, and its weight `exp(HEED * t * (score - best))`.

`t` is what makes each labelled image likeliest, seen by the other ones, in addition to how common siblings are. Where
that is not beyond chance better than to say nothing, nothing is said of these siblings.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from ..data.dataset import Dataset
from ..data.witness import LABELS, parse_witness, with_witness
from ..files import Progress
from ..logic.hierarchy import Hierarchy
from ..methods.build import METHODS
from .asking import SIZE, open_asking
from .classes import Siblings, siblings_among
from .config import Config
from .display import showing_progress
from .distributed import World
from .run import WITNESS
from .witness import Array, Trust, WitnessTable, beside_best, pixels_of

FACTORS = (0.25, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0, 5.6, 8.0, 11.0, 16.0)
"""What `t` may be, beside 0."""
CHANCE = 3.0
"""Standard errors by which a witness must be better than silence; with 40 labels it was 8 and more where it knew."""
ROUNDING = 1e-9
"""Of a gain that is none."""
HEED = 2.0
"""How often the witness counts against a network, which is surer of itself than it has reason to be."""


def learn_witness(
    config: Config,
    base: Path | None = None,
    size: int = SIZE,
    progress: Progress = lambda what, done, total: None,
) -> WitnessTable:
    """What the labelled images of `config.data` say about its unlabelled ones, seen by the classifier of
    `config.model`. Masks are opened of labelled images alone.
    """
    asking = open_asking(config, base, size)
    return weigh_likeness(asking.dataset, portraits(asking.logits(progress)))


def told_by_labels(config: Config, dataset: Dataset, base: Path, out: Path, here: World) -> tuple[Dataset, str | None]:
    """The data set with the witness that `data.witness: labels` asks for, and the text of its table; None where it has
    nothing to say, or nobody would listen.
    """
    method = METHODS.get(config.method.name)
    if config.data.witness != LABELS or method is None or not method.needs_unlabeled:
        return dataset, None
    config = replace(config, train=replace(config.train, device=str(here.device)))  # each process has its own
    with showing_progress(here.is_first) as show:
        table = here.from_first(learn_witness(config, base, progress=show))  # others may round otherwise
    if here.is_first:
        Console(stderr=True).print(f"data.witness: {table}", markup=False, highlight=False, soft_wrap=True)
    if not table.concepts:
        return dataset, None
    text = table.text()
    return with_witness(dataset, parse_witness(text, out / WITNESS, dataset.hierarchy)), text


def weigh_likeness(dataset: Dataset, seen: Array) -> WitnessTable:
    """`seen` are the portraits of the labelled images and, behind them, of the unlabelled ones."""
    labeled, unlabeled = np.split(seen, [len(dataset.labeled)])
    concepts: list[str] = []
    weights: list[Array] = []
    trust = []
    h = dataset.hierarchy
    counted = np.array([pixels_of(item, h.names, h) for item in dataset.labeled])
    for group in _groups(h):
        pixels = counted[:, [h.index(name) for name in group.children]]
        shown = pixels.any(0)
        group = group._replace(children=tuple(np.array(group.children)[shown].tolist()))
        telling = pixels.any(1)
        shares = pixels[telling][:, shown] / pixels[telling].sum(1, keepdims=True)
        trust.append(calibrate(group, labeled[telling], shares))
        if trust[-1].factor:
            concepts += group.children
            scores = likeness(labeled[telling], shares, unlabeled)
            weights.append(beside_best(HEED * trust[-1].factor * scores))
    names = tuple(photo.name for photo in dataset.unlabeled)
    found = np.concatenate(weights, 1) if weights else np.zeros((len(names), 0))
    order = [concepts.index(name) for name in h.names if name in concepts]
    return WitnessTable(tuple(concepts[i] for i in order), names, found[:, order], tuple(trust))


def portraits(logits: NDArray[np.floating]) -> Array:
    """(images, classes) -> the same; rows of length 1.

    >>> seen = portraits(np.log([[0.64, 0.36, 1e-9], [1e-9, 0.36, 0.64]]))
    >>> (seen @ seen.T).round(2)
    array([[ 1., -1.],
           [-1.,  1.]])
    """
    p = np.exp(logits.astype(np.float64) - logits.max(1, keepdims=True))
    root = np.sqrt(p / p.sum(1, keepdims=True))
    return _unit(root - root.mean(0))


def likeness(labeled: Array, shares: Array, images: Array) -> Array:
    """The score of each sibling in each image; `labeled` and `images` are portraits, `shares` (labelled, siblings)."""
    scores: Array = images @ _unit(shares.T @ labeled).T
    return scores


def calibrate(siblings: Siblings, labeled: Array, shares: Array) -> Trust:
    """`t` of these siblings: 0 where they are not told apart beyond chance."""
    count, kinds = shares.shape
    if count < 2 or kinds < 2:
        return Trust(siblings, 0.0, count, 0)
    others = [np.arange(count) != i for i in range(count)]
    scores = np.stack([likeness(labeled[o], shares[o], labeled[i : i + 1])[0] for i, o in enumerate(others)])
    common = np.log((shares.sum(0) - shares + 1 / kinds) / count)  # among the others, and one that shows all alike
    truth = (count * shares + 1 / kinds) / (count + 1)  # nothing that few images say is beyond doubt
    loss = np.stack([-(truth * _log_softmax(t * scores + common)).sum(1) for t in (0.0, *FACTORS)])
    best = int(loss.mean(1).argmin())
    gain = loss[0] - loss[best]
    error = float(gain.std(ddof=1)) / math.sqrt(count)
    if gain.mean() <= CHANCE * error + ROUNDING:
        return Trust(siblings, 0.0, count, 0)
    factor = FACTORS[best - 1]
    right = (factor * scores + common).argmax(1) == shares.argmax(1)
    return Trust(siblings, factor, count, int(right.sum()), (FACTORS[0], FACTORS[-1]))


def _groups(h: Hierarchy) -> list[Siblings]:
    """Siblings below a concept: at the top, an image shows most of them, and pixels know better."""
    groups = siblings_among([name for name in h.names if h.parent(name) is not None], h)
    return [group for group in groups if len(group.children) > 1]


def _unit(rows: Array) -> Array:
    unit: Array = rows / np.maximum(np.linalg.norm(rows, axis=-1, keepdims=True), 1e-12)
    return unit


def _log_softmax(rows: Array) -> Array:
    below: Array = rows - rows.max(1, keepdims=True)
    logs: Array = below - np.log(np.exp(below).sum(1, keepdims=True))
    return logs
