"""Any psi, learned sceptically: of each pixel only what holds whichever of the possible leaves is the right one.

A leaf is possible unless the teacher gives it less than `least`. Where one is left it is learned, as ever. Where `cat`
and `dog` are left, `animal` is learned, and that it is no chair, and the two may share the rest as they like; where
`cat` and `background` are left, that it is neither dog nor chair. Where all are possible, nothing is known.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..errors import ConfigError
from ..logic.leaves import Leaves
from ..plan import Plan
from .target import Prediction, Psi, Statistics, Target, counted


class PossibleLeaves:
    """The leaves that are at least so likely, and the one that another psi takes. A pixel that it leaves out stays so.

    `leaves` says how likely each is by the hierarchical head; None: the head is flat, and has a softmax.
    """

    def __init__(self, psi: Psi, leaves: Leaves | None, least: float) -> None:
        if not 0 < least < 1:
            raise ConfigError(f"psi.possible is {least}, expected a number above 0, below 1, or null")
        self.psi, self.leaves, self.least = psi, leaves, least

    @property
    def waits(self) -> bool:
        return self.psi.waits

    def plan(self, step: int, slots: Sequence[int]) -> Plan:
        return self.psi.plan(step, slots)

    @torch.no_grad()
    def __call__(self, unlabeled: Prediction, labeled: Prediction) -> tuple[Target, Statistics]:
        target, statistics = self.psi(unlabeled, labeled)
        assert target.leaf is not None
        possible = self._scores(unlabeled.logits.float()).softmax(1) >= self.least
        possible.scatter_(1, target.leaf.long()[:, None], True)
        known = ~possible.all(1)
        target = Target(target.weight * known, target.leaf, possible=possible)
        single = (possible.sum(1) == 1) & unlabeled.valid
        return target, statistics | counted(target, unlabeled.valid) | {"single": (single.sum(), unlabeled.valid.sum())}

    def _scores(self, logits: Tensor) -> Tensor:
        if self.leaves is None:
            return logits
        if self.leaves.channels.device != logits.device:  # once: every move makes the device wait
            self.leaves.to(logits.device)
        return self.leaves.scores(logits)
