"""What each class weighs, so that rare ones are heard."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .dataset import IGNORE, Masked, evenly

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
