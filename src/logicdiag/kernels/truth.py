"""Sums over pixels from which the truth degrees of C, D and E follow (Eq. fuzzy:*), block by block.

Every universal truth degree is 1 - M_p(error) for a power mean M_p of the rule's error at each pixel. What is kept
per rule is the sum of error^p (or the maximum, where p is infinite); sums of blocks, and of processes, add up.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from .layout import ROOT, Layout

Rows = Float[Tensor, "n pixels"]


def powered(values: Tensor, power: float) -> Tensor:
    """values ** power, by repeated multiplication where the power is a small whole number."""
    if power == int(power) and 1 <= power <= 16:
        result, square, left = None, values, int(power)
        while True:
            if left & 1:
                result = square if result is None else result * square
            left >>= 1
            if not left:
                assert result is not None
                return result
            square = square * square
    return values**power


@dataclass
class PowerMean:
    """Running M_p of rows of values in [0, 1], in float64."""

    power: float
    total: Tensor

    @classmethod
    def zeros(cls, shape: tuple[int, ...], power: float, device: torch.device) -> PowerMean:
        return cls(power, torch.zeros(shape, dtype=torch.float64, device=device))

    def add(self, values: Float[Tensor, "*rows pixels"], where: slice | int | tuple[slice, ...] = slice(None)) -> None:
        if values.shape[-1] == 0:
            return
        if math.isinf(self.power):
            self.total[where] = torch.maximum(self.total[where], values.amax(-1).double())
        else:
            self.total[where] += powered(values, self.power).sum(-1).double()

    def value(self, count: int) -> Tensor:
        """M_p over `count` pixels; 0 where there were none."""
        if math.isinf(self.power):
            return self.total
        return (self.total / max(count, 1)).clamp(min=0) ** (1 / self.power)


class FamilyErrors:
    """Power means of the errors of C, D and E; `degrees` turns them into truth degrees per row.

    `imply_error(a, b)` is 1 - (a -> b), `some(rows)` the disjunction of rows; `product` says that
    imply_error(a, b) = a (1 - b), so that the sums of powers are inner products and E is a Gram matrix (fact 5).
    """

    def __init__(
        self,
        layout: Layout,
        families: str,
        power: float,
        imply_error: Callable[[Tensor, Tensor], Tensor],
        some: Callable[[Tensor], Tensor],
        product: bool,
        device: torch.device,
    ) -> None:
        self.layout, self.families, self.power = layout, families, power
        self.imply_error, self.some = imply_error, some
        self.as_products = product and math.isfinite(power)
        n = len(layout.order)
        self.means = {family: PowerMean.zeros((n,), power, device) for family in families if family in "CD"}
        self.pairs = [
            PowerMean.zeros((group.size, group.size), power, device) if "E" in families and group.size > 1 else None
            for group in layout.groups
        ]

    def tensors(self) -> list[Tensor]:
        """What to add up (or, for an infinite power, to maximise) over processes."""
        return [mean.total for mean in (*self.means.values(), *self.pairs) if mean is not None]

    def add(self, rows: Rows) -> None:
        if self.as_products:
            self._add_products(rows)
        else:
            self._add_errors(rows)

    def _add_products(self, rows: Rows) -> None:
        high = powered(rows, self.power) if self.families != "D" else rows
        for group, pair in zip(self.layout.groups, self.pairs, strict=True):
            kids = high[group.rows]
            if pair is not None:
                pair.total += (kids @ kids.T).double()
            if group.parent == ROOT:
                continue
            if "C" in self.means:
                without_parent = powered(1 - rows[group.parent], self.power)
                self.means["C"].total[group.rows] += (kids @ without_parent).double()
            if "D" in self.means:
                without_kids = powered(1 - self.some(rows[group.rows]), self.power)
                self.means["D"].total[group.parent] += torch.dot(
                    powered(rows[group.parent], self.power), without_kids
                ).double()

    def _add_errors(self, rows: Rows) -> None:
        for group, pair in zip(self.layout.groups, self.pairs, strict=True):
            kids = rows[group.rows]
            if pair is not None:
                for i in range(group.size):
                    pair.add(self.imply_error(kids[i].expand_as(kids), 1 - kids), i)
            if group.parent == ROOT:
                continue
            parent = rows[group.parent]
            if "C" in self.means:
                self.means["C"].add(self.imply_error(kids, parent.expand_as(kids)), group.rows)
            if "D" in self.means:
                self.means["D"].add(self.imply_error(parent, self.some(kids)), group.parent)

    def degrees(self, count: int) -> dict[str, Float[Tensor, " n"]]:
        """Truth degree of each family at each row; 1 where a family says nothing of a concept."""
        degrees = {family: 1 - mean.value(count) for family, mean in self.means.items()}
        if "E" in self.families:
            exclusion = torch.ones(len(self.layout.order), dtype=torch.float64, device=self._device())
            for group, pair in zip(self.layout.groups, self.pairs, strict=True):
                if pair is not None:
                    errors = pair.value(count)
                    exclusion[group.rows] -= (errors.sum(1) - errors.diagonal()) / (group.size - 1)
            degrees["E"] = exclusion
        return degrees

    def _device(self) -> torch.device | None:
        tensors = self.tensors()
        return tensors[0].device if tensors else None
