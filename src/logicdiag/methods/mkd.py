"""Mutual knowledge distillation (Yuan et al., "Semi-supervised Semantic Segmentation with Mutual Knowledge
Distillation", ACM Multimedia 2023, arXiv 2208.11499): two students, each with an averaged teacher that teaches the
other one.

    L     = L_s + lambda (1.5 L_mkd + L_cps)
    L_s   = mean over labelled pixels of                            H(p1, y) + H(p2, y)
    L_mkd = mean over labelled and unlabelled pixels together of    H(p1, psi(q2)) + H(p2, psi(q1))
    L_cps = the same of                                             H(p1, psi(p2)) + H(p2, psi(p1))

p1 and p2 are the students' predictions of strong views with CutMix, from perturbed features; q1 and q2 those of their
teachers of the weak views, mixed alike. Terms and constants are those of the code that the authors publish
(semi-mmseg): the two weigh 1.5 and 1 from the first step on (lambda 1, `method.ramp: [0, 0]`), a teacher keeps
min(1 - 1 / step, 0.6) of itself, and psi is the likeliest class (psi = threshold with `psi.threshold: 0`); it also has
a threshold for the teachers' labels, which is off.

Where ours differs:
- The authors perturb features by ISDA, a bound of the softmax cross entropy under Gaussian noise with each class's
  variances, of which it takes 0 at the start and 1.5 at the end; those of all networks and views. It is one of leaves
  alone, which the hierarchical head and repaired labels are not. So here channels of the features of strong views are
  dropped with probability `method.feature_dropout`, 0.5, as UniMatch does, other ones for each student; labelled views
  and teachers keep theirs.
- Strong views and boxes are those of all our methods, so that methods differ in nothing but their arrangement; theirs
  have one change of five and three boxes, and their weak and labelled views change colours, too. Losses of pseudo
  labels are taken at the view's size, as all our losses are, theirs at an eighth.
- Labelled and strong views share a pass, and so batch-norm statistics, as in all our methods. Teachers are in inference
  mode, theirs in training mode, so that a label does not depend on its neighbours in the batch. Pixels of labelled
  views that have no label do not count: what they show may be none of the classes.
- Teachers keep 0.996 (less in a short run), and the first is evaluated, where in their code the first student is: so
  methods are compared with the same kind of network.
- Lambda rises between 0.3 and 0.6 of the run, which keeps the noise of early labels from the students.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from ..data.views import partner
from ..plan import Plan, Planned, part, under
from .features import FeatureDropout
from .method import APART, Losses, Network, Paper, Setting, Step
from .mutual import Labels, Logits, Mutual, together

DISTILLED, CROSSED = 1.5, 1.0


class MKD(Mutual):
    paper = Paper("MKD", "Yuan et al.", "ACM MM", 2023)
    learned, taught = 4, 4
    averaged: ClassVar[int] = 2
    needs_average = True
    label_names = ("psi/teacher1", "psi/teacher2", "psi/student1", "psi/student2")

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.dropout = FeatureDropout(self.config.feature_dropout, self.seed)
        self.features: tuple[Network, ...] = tuple(student.features for student in self.students)
        self.decode: tuple[Network, ...] = tuple(student.decode for student in self.students)

    def compile(self, compiled: Callable[[Network], Network]) -> None:
        super().compile(compiled)
        self.features = tuple(compiled(student.features) for student in self.students)
        self.decode = tuple(compiled(student.decode) for student in self.students)

    def plan(self, index: int, progress: float, labeled: Sequence[int], unlabeled: Sequence[int]) -> Plan:
        plan = super().plan(index, progress, labeled, unlabeled) | self.plan_view("strong", index, unlabeled)
        for which, student in enumerate(self.students):
            places = [slot + which * APART for slot in unlabeled]
            plan |= under(f"kept/{which}", self.dropout.plan(student.encoder, index, places))
        return plan

    def losses(self, step: Step) -> Losses:
        labeled, unlabeled = step.labeled, step.unlabeled
        assert unlabeled is not None
        strong, boxes = self.strong(unlabeled.image, part(step.plan, "strong"))
        valid = torch.where(boxes, partner(unlabeled.valid), unlabeled.valid)
        predicted, of_teachers, of_students = [], [], []
        for which in range(self.networks):
            weak = self.teach(torch.cat([labeled.image, unlabeled.image]), which)
            taught = Logits(*weak.split([len(labeled), len(unlabeled)]))
            predicted.append(self._forward(which, labeled.image, strong, part(step.plan, f"kept/{which}")))
            of_teachers.append(self.labels(self.label_names[which], taught, unlabeled.valid, step).mixed(boxes))
            of_students.append(self.labels(self.label_names[2 + which], predicted[which], valid, step))
        first, second = predicted
        supervised = self.labeled_loss(first.labeled, step) + self.labeled_loss(second.labeled, step)
        distilled, crossed = (
            self.cross_loss(first, labels[1], step) + self.cross_loss(second, labels[0], step)
            for labels in (of_teachers, of_students)
        )
        consistency = DISTILLED * distilled + CROSSED * crossed
        total = supervised + step.plan["weight"] * consistency
        parts = {"labeled": supervised, "unlabeled": consistency, "distilled": distilled, "crossed": crossed}
        return Losses(total, parts, together(*(labels.statistics for labels in of_teachers)))

    def cross_loss(self, logits: Logits, labels: Labels, step: Step) -> Tensor:
        on_labeled, on_unlabeled = self.summed(logits, labels, step)
        return (on_labeled + on_unlabeled) / (step.labeled_pixels + step.unlabeled_pixels)

    def _forward(self, which: int, labeled: Tensor, strong: Tensor, kept: Planned) -> Logits:
        """One pass over both; features of strong views are dropped."""
        count, size = len(labeled), (labeled.shape[-2], labeled.shape[-1])
        with self.autocast():
            features = self.features[which](torch.cat([labeled, strong]))
            decoded = tuple(
                torch.cat([f[:count], self.dropout(f[count:], kept[str(level)])]) for level, f in enumerate(features)
            )
            logits: Tensor = self.decode[which](decoded, size)
        return Logits(logits[:count], logits[count:])
