"""Algorithm 1 of LogicDiag's supplement: one view, no teacher, labelled and unlabelled pixels together.

    L = L(p_s, o_s) + lambda L(p, o_r)        p: predictions of both; o_r: their own pseudo labels, repaired

Eq. 2 (`fixmatch` with psi = diagnosis) is the default reading of the paper; this is the other one.
"""

from __future__ import annotations

import torch

from ..errors import ConfigError
from ..pseudo.target import Prediction
from .method import Losses, Method, Step


class Algorithm1(Method):
    default_decay = 0.0

    def _averages(self, decay: float) -> bool:
        if decay > 0:
            raise ConfigError(f"method.teacher_decay is {decay}, but algorithm1 has no teacher; leave it null")
        return False

    def losses(self, step: Step) -> Losses:
        labeled, unlabeled = step.labeled, step.unlabeled
        assert unlabeled is not None
        assert labeled.leaf is not None
        logits = self.predict(torch.cat([labeled.image, unlabeled.image]))
        probs = self.student.probs(logits.detach())
        slots = (*labeled.slots, *(slot + SECOND for slot in unlabeled.slots))
        valid = torch.cat([labeled.leaf >= 0, unlabeled.valid])
        nothing = Prediction(probs[:0], valid[:0])
        target, statistics = self.psi(Prediction(probs, valid, step.index, slots), nothing)
        supervised = self.labeled_loss(logits[: len(labeled)], step)
        both = self.loss(logits, target, step.index, slots) / (step.labeled_pixels + step.unlabeled_pixels)
        total = supervised + self.weight(step) * both
        return Losses(total, {"labeled": supervised, "unlabeled": both}, statistics)


SECOND = 1 << 20
"""Keeps the places of unlabelled views apart from those of labelled ones."""
