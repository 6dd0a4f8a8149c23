"""Cross pseudo supervision (Chen et al., "Semi-Supervised Semantic Segmentation with Cross Pseudo Supervision", CVPR
2021), with CutMix: two networks that start from other random weights teach each other.

    L     = L_s + lambda L_cps
    L_s   = mean over labelled pixels of    H(p1, y) + H(p2, y)
    L_cps = mean over labelled pixels, plus mean over unlabelled ones, of    H(p1, psi(p2)) + H(p2, psi(p1))

The paper's psi is the likeliest class, however unlikely (psi = threshold with `psi.threshold: 0`). No gradient goes
through a label. With CutMix each network labels the unlabelled images as they are, and the labels are mixed as the
images are which the other one sees. The authors have lambda = 1.5 (VOC 2012) and 6 (Cityscapes), at once, and in their
code 1 and 5 with CutMix. The first network alone is used afterwards.

Where ours differs:
- Labels of unlabelled views are made by the networks as they are at inference, where the authors' code leaves batch
  norm in training mode, so that a label does not depend on its neighbours in the batch; those of labelled views are
  taken from the pass that learns, which costs nothing.
- Pixels of labelled views that have no label do not count: what they show may be none of the classes.
- The authors' code leaves the labelled part of L_cps out where it mixes, and elsewhere takes one mean over all pixels;
  here there are two means, as in the equations.
- A view has one box of CutMix or none (`data.views.cutmix`), from its neighbour in the batch, as in all our methods;
  each of theirs has three, from a second batch.
- L_s is the one of all methods; theirs mines hard examples on Cityscapes.
- The averaged copy of the first network (`method.teacher_decay`: 0.996, less in a short run) is never asked for labels;
  the paper has none. It is evaluated, so that methods are compared with the same kind of network.
- By default lambda is 1 and rises between 0.3 and 0.6 of the run, which keeps the noise of early labels from the
  students.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..plan import Plan, part
from .method import Losses, Paper, Step
from .mutual import Labels, Logits, Mutual, together


class CPS(Mutual):
    paper = Paper("CPS", "Chen et al.", "CVPR", 2021)
    learned, taught = 4, 2
    label_names = ("psi/1", "psi/2")

    def plan(self, index: int, progress: float, labeled: Sequence[int], unlabeled: Sequence[int]) -> Plan:
        plan = super().plan(index, progress, labeled, unlabeled)
        return plan | self.plan_view("mixed", index, unlabeled, colour=False)

    def losses(self, step: Step) -> Losses:
        unlabeled = step.unlabeled
        assert unlabeled is not None
        mixed, boxes = self.strong(unlabeled.image, part(step.plan, "mixed"))
        predicted, labels = [], []
        for which, name in enumerate(self.label_names):
            weak = self.infer(unlabeled.image, which)
            logits = self.predict(torch.cat([step.labeled.image, mixed]), which)
            predicted.append(Logits(*logits.split([len(step.labeled), len(unlabeled)])))
            seen = Logits(predicted[-1].labeled, weak)
            labels.append(self.labels(name, seen, unlabeled.valid, step).mixed(boxes))
        first, second = predicted
        supervised = self.labeled_loss(first.labeled, step) + self.labeled_loss(second.labeled, step)
        crossed = self.cross_loss(first, labels[1], step) + self.cross_loss(second, labels[0], step)
        total = supervised + step.plan["weight"] * crossed
        statistics = together(*(found.statistics for found in labels))
        return Losses(total, {"labeled": supervised, "unlabeled": crossed}, statistics)

    def cross_loss(self, logits: Logits, labels: Labels, step: Step) -> Tensor:
        on_labeled, on_unlabeled = self.summed(logits, labels, step)
        return on_labeled / step.labeled_pixels + on_unlabeled / step.unlabeled_pixels
