"""Any psi, learned only as deep as the teacher is sure: `animal` may be certain where `cat` or `dog` is not."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..errors import ConfigError
from ..logic.leaves import Leaves
from ..plan import Plan
from .target import Prediction, Psi, Statistics, Target, counted


class SureLevels:
    """The leaf that another psi takes, and the last concept on its path that is at least `least` likely.

    Concepts are as likely as the leaves below them together (`Leaves.probs`). A pixel that psi leaves out stays so.
    """

    def __init__(self, psi: Psi, leaves: Leaves, least: float) -> None:
        if not 0 < least <= 1:
            raise ConfigError(f"psi.levels is {least}, expected a number above 0, up to 1, or null")
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
        if self.leaves.channels.device != unlabeled.logits.device:  # once: every move makes the device wait
            self.leaves.to(unlabeled.logits.device)
        probs = self.leaves.probs(unlabeled.logits.float())
        sure, some = self.leaves.deepest(probs, target.leaf.long(), self.least)
        target = Target(target.weight * some, target.leaf, None, sure)
        return target, statistics | counted(target, unlabeled.valid)
