"""Supervised training on the labelled views alone: what every other method has to beat."""

from __future__ import annotations

from .method import Losses, Method, Step


class Supervised(Method):
    """L = L^l (Eq. 1). Unlabelled images are not looked at."""

    needs_unlabeled = False

    def losses(self, step: Step) -> Losses:
        labeled = self.labeled_loss(self.predict(step.labeled.image), step)
        return Losses(labeled, {"labeled": labeled})
