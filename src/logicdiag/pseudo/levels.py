"""Any psi, learned only as deep as the teacher is sure: `animal` may be certain where `cat` or `dog` is not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..errors import ConfigError
from ..kernels.gpu import fuses
from ..kernels.tables import MOST_LEVELS
from ..logic.leaves import Leaves
from .target import Around, Prediction, Psi, Statistics, Target, counted

if TYPE_CHECKING:
    from ..kernels.triton_levels import Paths


class SureLevels(Around):
    """The leaf that another psi takes, and the last concept on its path that is at least `least` likely.

    Concepts are as likely as the leaves below them together (`Leaves.probs`). A pixel that psi leaves out stays so.
    """

    def __init__(self, psi: Psi, leaves: Leaves, least: float) -> None:
        if not 0 < least <= 1:
            raise ConfigError(f"psi.levels is {least}, expected a number from 0 to 1, or null")
        super().__init__(psi)
        self.leaves, self.least = leaves, least
        self.paths: Paths | None = None

    @torch.no_grad()
    def __call__(self, unlabeled: Prediction, labeled: Prediction) -> tuple[Target, Statistics]:
        target, statistics = self.psi(unlabeled, labeled)
        assert target.leaf is not None
        sure, some = self._deepest(unlabeled.deciding, target.leaf)
        target = Target(target.weight * some, target.leaf, None, sure)
        return target, statistics | counted(target, unlabeled.valid)

    def _deepest(self, logits: Tensor, leaf: Tensor) -> tuple[Tensor, Tensor]:
        if self.leaves.decision == "leaf" and fuses(logits.device) and self.leaves.paths.shape[1] <= MOST_LEVELS:
            return self._fused(logits, leaf)
        if self.leaves.channels.device != logits.device:  # once: every move makes the device wait
            self.leaves.to(logits.device)
        if self.leaves.decision == "tree":
            return self.leaves.deepest_by_tree(logits, leaf, self.least)
        return self.leaves.deepest(self.leaves.probs(logits.float()), leaf.long(), self.least)

    def _fused(self, logits: Tensor, leaf: Tensor) -> tuple[Tensor, Tensor]:
        from ..kernels.triton_levels import Paths, deepest

        if self.paths is None:
            self.paths = Paths.of(self.leaves.parents, logits.device)
        sure, some = deepest(self.paths, logits.flatten(2), leaf.flatten(1), self.least)
        return sure.view_as(leaf), some.view_as(leaf)
