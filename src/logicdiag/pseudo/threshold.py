"""Psi by confidence: the likeliest leaf, where it is likely enough (FixMatch; Eq. 2 with an indicator)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ..errors import ConfigError
from ..logic.hierarchy import Hierarchy
from ..logic.leaves import Leaves
from ..plan import Plan
from .target import Prediction, Statistics, Target, counted


class Threshold:
    """psi(p) = argmax p where max p >= threshold. With the hierarchical head, over the leaves' sigmoids, or a softmax
    over what the whole tree says of them (`decision`).
    """

    def __init__(self, hierarchy: Hierarchy, threshold: float, head: str, decision: str = "leaf") -> None:
        if not 0 <= threshold <= 1:
            raise ConfigError(f"psi.threshold is {threshold}, expected a number from 0 to 1")
        self.threshold = threshold
        self.leaves = Leaves(hierarchy, decision) if head == "hierarchical" else None

    waits = False

    def plan(self, step: int, slots: Sequence[int]) -> Plan:
        return {}

    def __call__(self, unlabeled: Prediction, labeled: Prediction) -> tuple[Target, Statistics]:
        confidence, leaf = self._leaves(unlabeled.deciding.float()).max(dim=1)
        weight = ((confidence >= self.threshold) & unlabeled.valid).to(confidence.dtype)
        target = Target(weight, leaf)
        return target, counted(target, unlabeled.valid)

    def _leaves(self, logits: Tensor) -> Tensor:
        if self.leaves is None:
            return logits.softmax(dim=1)
        if self.leaves.channels.device != logits.device:
            self.leaves.to(logits.device)
        scores = self.leaves.scores(logits)
        return scores.sigmoid() if self.leaves.decision == "leaf" else scores.softmax(dim=1)
