"""FixMatch (Sohn et al., NeurIPS 2020) for segmentation; with psi = diagnosis it is LogicDiag (ICCV 2023, Eq. 2).

The weak view of an unlabelled image makes the label, a strong view learns it:

    L = L^l + lambda / N^u  sum_j H(h(A(u_j)), psi(h(alpha(u_j))))

Constants: FixMatch has lambda = 1 and a threshold of 0.95, LogicDiag lambda = 5; both at once (`method.ramp: [0, 0]`).

Where ours differs from the papers: strong views are those of UniMatch (colour jitter, gray, blur, CutMix); labelled and
strong views go through the student in one pass, so they share batch-norm statistics; the weak view goes through an
averaged teacher. With `method.teacher_decay: 0` the student labels for itself, as in the papers, but as it is at
inference, where the authors of FixMatch take its labels from the pass that learns, batch norm in training mode.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch

from ..plan import Plan, part
from .method import Losses, Method, Paper, Step


class FixMatch(Method):
    paper = Paper("FixMatch", "Sohn et al.", "NeurIPS", 2020)
    learned, taught = 2, 1
    stream: ClassVar[str] = "strong"
    """Of the draws for strong views."""
    colour: ClassVar[bool] = True
    """Whether strong views change colours, or CutMix is all."""

    def plan(self, index: int, progress: float, labeled: Sequence[int], unlabeled: Sequence[int]) -> Plan:
        plan = super().plan(index, progress, labeled, unlabeled) | self.plan_target(index, unlabeled)
        return plan | self.plan_view(self.stream, index, unlabeled, self.colour)

    def losses(self, step: Step) -> Losses:
        labeled, unlabeled = step.labeled, step.unlabeled
        assert unlabeled is not None
        weak = self.teach(unlabeled.image)
        strong, boxes = self.strong(unlabeled.image, part(step.plan, self.stream))
        logits = self.predict(torch.cat([labeled.image, strong]))
        on_labeled, on_strong = logits[: len(labeled)], logits[len(labeled) :]
        target, statistics = self.target(weak, on_labeled, step)
        supervised = self.labeled_loss(on_labeled, step)
        consistency = self.unlabeled_loss(on_strong, target.mixed(boxes), step)
        total = supervised + step.plan["weight"] * consistency
        return Losses(total, {"labeled": supervised, "unlabeled": consistency}, statistics)
