"""Algorithm 1 of LogicDiag's supplement: one view, no teacher, labelled and unlabelled pixels together.

    L = L(p_s, o_s) + lambda L(p, o_r)        p: predictions of both; o_r: their own pseudo labels, repaired

Eq. 2 (`fixmatch` with psi = diagnosis) is the default reading of the paper; this is the other one.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..errors import ConfigError
from ..plan import Plan, part
from ..pseudo.target import Prediction
from .method import APART, Losses, Method, Paper, Step


class Algorithm1(Method):
    paper = Paper("LogicDiag, Algorithm 1", "Liang et al.", "ICCV", 2023)
    learned, taught = 2, 0
    averaged = 0
    default_decay = 0.0

    def _averages(self, decay: float) -> bool:
        if decay > 0:
            raise ConfigError(f"method.teacher_decay is {decay}, but algorithm1 has no teacher; leave it null")
        return False

    def plan(self, index: int, progress: float, labeled: Sequence[int], unlabeled: Sequence[int]) -> Plan:
        plan = super().plan(index, progress, labeled, unlabeled)
        return plan | self.plan_target(index, (*labeled, *(slot + APART for slot in unlabeled)))

    def losses(self, step: Step) -> Losses:
        labeled, unlabeled = step.labeled, step.unlabeled
        assert unlabeled is not None
        assert labeled.leaf is not None
        logits = self.predict(torch.cat([labeled.image, unlabeled.image]))
        valid = torch.cat([labeled.leaf >= 0, unlabeled.valid])
        own = Prediction(logits.detach(), valid, part(step.plan, "psi"), step.heard())
        target, statistics = self.psi(own, Prediction(own.logits[:0], valid[:0]))
        supervised = self.labeled_loss(logits[: len(labeled)], step)
        summed = self.loss(logits, target, part(step.plan, "points/unlabeled"))
        both = summed / (step.labeled_pixels + step.unlabeled_pixels)
        total = supervised + step.plan["weight"] * both
        return Losses(total, {"labeled": supervised, "unlabeled": both}, statistics)
