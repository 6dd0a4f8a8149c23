"""Whether probabilities mean what they say: among what is said with 70 %, are 70 % right?"""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

BINS = 10


class Reliability:
    """Counts in bins of equal width.

    >>> r = Reliability(bins=2)
    >>> r.add(torch.tensor([0.25, 0.375, 0.875, 1.0]), torch.tensor([False, True, True, True]))
    >>> r.shares()
    [(2, 0.3125, 0.5), (2, 0.9375, 1.0)]
    >>> r.error()
    0.125
    """

    def __init__(self, bins: int = BINS) -> None:
        self.sums = torch.zeros(3, bins, dtype=torch.float64)
        """Pixels, their probabilities added up, and how many of them are right."""

    def add(self, probability: Float[Tensor, "*pixels"], right: Bool[Tensor, "*pixels"]) -> None:
        p = probability.flatten().double()
        bins = self.sums.shape[1]
        place = (p * bins).long().clamp(0, bins - 1)  # 1 belongs to the last bin
        parts = [torch.bincount(place, weights, bins) for weights in (None, p, right.flatten().double())]
        self.sums += torch.stack([part.double() for part in parts]).cpu()

    @property
    def pixels(self) -> int:
        return int(self.sums[0].sum())

    def shares(self) -> list[tuple[int, float, float]]:
        """Per bin: pixels, their mean probability, the share that is right; NaN in empty bins."""
        return [
            (int(count), said / count, right / count) if count else (0, math.nan, math.nan)
            for count, said, right in self.sums.T.tolist()
        ]

    def error(self) -> float:
        """The expected calibration error: the mean gap between said and right, weighed by pixels."""
        count, said, right = self.sums
        return float((said - right).abs().sum() / count.sum()) if self.pixels else math.nan

    def to_list(self) -> list[Any]:
        table: list[Any] = self.sums.tolist()
        return table

    @classmethod
    def from_list(cls, table: list[Any]) -> Reliability:
        found = cls(len(table[0]))
        found.sums = torch.tensor(table, dtype=torch.float64)
        return found
