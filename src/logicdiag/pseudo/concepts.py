"""Any psi, learned concept by concept: as where labels need be no path, so that all rules and some have one loss."""

from __future__ import annotations

import torch

from ..logic.leaves import Leaves
from .target import Around, Prediction, Psi, Statistics, Target

TARGETS = ("leaf", "concepts")


class Concepts(Around):
    """Any psi that takes a leaf, as one label for each concept."""

    def __init__(self, psi: Psi, leaves: Leaves) -> None:
        super().__init__(psi)
        self.leaves = leaves

    @torch.no_grad()
    def __call__(self, unlabeled: Prediction, labeled: Prediction) -> tuple[Target, Statistics]:
        target, statistics = self.psi(unlabeled, labeled)
        if target.leaf is None:
            return target, statistics
        if self.leaves.under.device != target.leaf.device:  # once: every move makes the device wait
            self.leaves.to(target.leaf.device)
        labels = self.leaves.under.T[target.leaf.long().clamp(min=0)].movedim(-1, 1)
        return Target(target.weight, None, labels), statistics
