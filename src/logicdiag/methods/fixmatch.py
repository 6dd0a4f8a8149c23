"""FixMatch (Sohn et al., NeurIPS 2020) for segmentation; with psi = diagnosis it is LogicDiag (Liang et al., ICCV 2023,
Eq. 2).

The weak view of an unlabelled image makes the label, a strong view learns it:

    L = L^l + lambda / N^u  sum_j H(h(A(u_j)), psi(h(alpha(u_j))))

Constants: FixMatch has lambda = 1 and a threshold of 0.95, LogicDiag lambda = 5; both at once (`method.ramp: [0, 0]`).

Where ours differs from the papers:
- Strong views are those of UniMatch (colour jitter, gray, blur, CutMix): FixMatch itself labels whole images, and
  LogicDiag names no amounts. Of these only CutMix moves pixels, and labels are mixed alike.
- Labelled and strong views go through the student in one pass, so they share batch-norm statistics: those that are kept
  for inference are of both.
- The weak view goes through an averaged teacher (decay 0.996, less in a short run). It is also the network that is
  evaluated, so that methods are compared with the same kind of network. With `method.teacher_decay: 0` the student
  labels for itself, as in the papers, but as it is at inference, so that a label does not depend on its neighbours in
  the batch; the authors of FixMatch take its labels from the pass that learns, batch norm in training mode.
- By default lambda is 1 and rises between 0.3 and 0.6 of the run, which keeps the noise of early labels from the
  student.
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
