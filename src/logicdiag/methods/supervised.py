"""Supervised training on the labelled views alone: what every other method has to beat."""

from __future__ import annotations

from .method import Losses, Method, Paper, Step


class Supervised(Method):
    """L = L^l (Eq. 1). Unlabelled images are not looked at."""

    paper = Paper("LogicDiag, Eq. 1", "Liang et al.", "ICCV", 2023)
    learned, taught = 1, 0
    needs_unlabeled = False

    def losses(self, step: Step) -> Losses:
        labeled = self.labeled_loss(self.predict(step.labeled.image), step)
        return Losses(labeled, {"labeled": labeled})
