"""What each class weighs, and which images show it, so that rare ones are heard."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .dataset import IGNORE, Masked, evenly

SAMPLING = {
    "images": "each labelled image as often as any other",
    "classes": "each class as often as any other, in an image that shows it",
}
MOST_MASKS = 1000
"""Masks that are counted; of more, as many, evenly apart."""


def leaf_weights(items: Sequence[Masked], leaves: int, power: float) -> NDArray[np.float32]:
    """A weight for each leaf: its share of the labelled pixels to the power of `-power`, scaled so that labelled
    pixels weigh 1 on average. A leaf that no mask shows weighs as the rarest one.

    >>> common_and_rare = [Masked("x", lambda: None, lambda: np.array([[0, 0, 0, 0, 0, 0, 0, 0, 1, 255]], np.uint8))]
    >>> leaf_weights(common_and_rare, 3, 0.5).round(3)
    array([0.831, 2.351, 2.351], dtype=float32)
    """
    counts = np.zeros(IGNORE + 1)
    for item in evenly(items, MOST_MASKS):
        counts += np.bincount(item.mask().ravel(), minlength=IGNORE + 1)
    counts = counts[:leaves]
    if not counts.any():
        return np.ones(leaves, np.float32)
    shares = np.where(counts > 0, counts, counts[counts > 0].min()) / counts.sum()
    weights = shares**-power
    weights *= counts.sum() / (weights * counts).sum()
    return np.asarray(weights, np.float32)


def shown(items: Sequence[Masked], leaves: int) -> dict[int, list[int]]:
    """For each leaf that any mask shows, the images that show it; every mask is read.

    >>> masks = [np.array([[0, 255]], np.uint8), np.array([[0, 2]], np.uint8)]
    >>> shown([Masked("x", lambda: None, lambda mask=mask: mask) for mask in masks], 3)
    {0: [0, 1], 2: [1]}
    """
    found: dict[int, list[int]] = {}
    for number, item in enumerate(items):
        for leaf in np.flatnonzero(np.bincount(item.mask().ravel(), minlength=IGNORE + 1)[:leaves]).tolist():
            found.setdefault(leaf, []).append(number)
    return dict(sorted(found.items()))
