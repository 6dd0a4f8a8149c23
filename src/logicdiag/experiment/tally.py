"""Pseudo labels held against the truth: counts over all pixels, and the shares that follow from them."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from ..logic.hierarchy import Hierarchy

NONE = -1
"""In place of a leaf: labels that are no path to a single one."""


class Tally:
    """Counts by the true leaf; pixels whose truth is not known count nowhere.

    `before` is the likeliest leaf, as inference takes it; `labels` is the leaf that the thresholded outputs spell, if
    they spell one; `after` is the leaf of the target that psi makes of them; `weight` is what it counts.
    """

    def __init__(self, hierarchy: Hierarchy, device: torch.device | str = "cpu") -> None:
        self.leaves = hierarchy.leaves
        self.sums: dict[str, Tensor] = {}
        self.device = torch.device(device)

    def add(
        self,
        truth: Int64[Tensor, "*pixels"],
        before: Int64[Tensor, "*pixels"],
        after: Int64[Tensor, "*pixels"],
        weight: Float[Tensor, "*pixels"],
        labels: Int64[Tensor, "*pixels"] | None = None,
        conflict: Bool[Tensor, "*pixels"] | None = None,
    ) -> None:
        """`truth` is -1 where it is not known; `labels` and `conflict` are of the hierarchical head alone."""
        known = truth >= 0
        truth, before, after, weight = truth[known], before[known], after[known], weight[known].double()
        right, right_after = before == truth, after == truth
        self._add("pixels", truth)
        self._add("before", truth, right)
        self._add("after", truth, right_after)
        self._add("counted", truth, weight)
        self._add("learned", truth, weight * right_after)
        taken = after.clamp(min=0)
        self._add("said", taken, weight * (after >= 0))
        self._add("said_right", taken, weight * right_after)
        if labels is not None:
            self._add("exact_before", truth, labels[known] == truth)
        if conflict is not None:
            conflict = conflict[known]
            self._add("conflict", truth, conflict)
            self._add("conflict_before", truth, conflict & right)
            self._add("conflict_after", truth, conflict & right_after)
            self._add("repaired", truth, conflict & ~right & right_after)
            self._add("broken", truth, conflict & right & ~right_after)

    def _add(self, name: str, leaf: Tensor, what: Tensor | None = None) -> None:
        weights = None if what is None else what.double()
        found = torch.bincount(leaf.flatten(), None if weights is None else weights.flatten(), len(self.leaves))
        self.sums[name] = self.sums.get(name, torch.zeros_like(found.double())) + found.double()

    def shares(self) -> dict[str, Any]:
        """Over all pixels, and in `classes` by the true class; None: there was nothing to take a share of."""
        sums = {name: values.cpu() for name, values in self.sums.items()}
        if not sums:
            return {"pixels": 0}
        total = _shares({name: float(values.sum()) for name, values in sums.items()})
        classes = {
            leaf: _shares({name: float(values[i]) for name, values in sums.items()}, by_class=True)
            for i, leaf in enumerate(self.leaves)
        }
        return {**total, "classes": classes}


OF = {
    "before": "pixels",
    "exact_before": "pixels",
    "after": "pixels",
    "counted": "pixels",
    "learned": "counted",
    "conflict": "pixels",
    "conflict_before": "conflict",
    "conflict_after": "conflict",
    "repaired": "conflict",
    "broken": "conflict",
}
"""Which sum a share is of."""
SHARES = tuple(OF)


def _shares(sums: dict[str, float], by_class: bool = False) -> dict[str, Any]:
    out: dict[str, Any] = {"pixels": int(sums["pixels"])}
    out |= {name: _share(sums[name], sums[of]) for name, of in OF.items() if name in sums}
    if by_class:
        out["precision"] = _share(sums["said_right"], sums["said"])
    return out


def _share(part: float, whole: float) -> float | None:
    return round(part / whole, 6) if whole else None
