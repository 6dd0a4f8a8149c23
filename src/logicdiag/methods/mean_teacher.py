"""Mean teacher (Tarvainen and Valpola, NeurIPS 2017) with CutMix, as CutMix-Seg (French et al., BMVC 2020) applies it.

The teacher is the moving average of the student. It labels the weak views; the student sees them mixed by CutMix, with
no change of colour, and learns the labels mixed alike.

Where ours differs: the target is psi of the teacher's prediction and the loss the head's own, where the papers take the
squared difference of probabilities, so that methods differ in nothing but their arrangement.
"""

from __future__ import annotations

import torch

from ..errors import ConfigError
from .method import Losses, Method, Step


class MeanTeacher(Method):
    def _averages(self, decay: float) -> bool:
        if decay <= 0:
            raise ConfigError(
                f"method.teacher_decay is {decay}, but a mean teacher is an average: expected above 0, such as 0.99"
            )
        return True

    def losses(self, step: Step) -> Losses:
        labeled, unlabeled = step.labeled, step.unlabeled
        assert unlabeled is not None
        weak = self.teach(unlabeled.image)
        mixed, boxes = self.strong(unlabeled, "mixed", colour=False)
        logits = self.predict(torch.cat([labeled.image, mixed]))
        on_labeled, on_mixed = logits[: len(labeled)], logits[len(labeled) :]
        target, statistics = self.target(weak, unlabeled, on_labeled, labeled)
        supervised = self.labeled_loss(on_labeled, step)
        consistency = self.unlabeled_loss(on_mixed, target.mixed(boxes), step)
        total = supervised + self.weight(step) * consistency
        return Losses(total, {"labeled": supervised, "unlabeled": consistency}, statistics)
