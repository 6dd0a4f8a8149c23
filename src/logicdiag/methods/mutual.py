"""What methods share in which two networks teach each other: psi of one, and the loss of the other."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from ..plan import Plan, part, under
from ..pseudo.target import Prediction, Statistics, Target
from .method import APART, Method, Step


class Logits(NamedTuple):
    """What a network says of a step's views."""

    labeled: Tensor
    unlabeled: Tensor

    def detach(self) -> Logits:
        return Logits(self.labeled.detach(), self.unlabeled.detach())


class Labels(NamedTuple):
    """What psi makes of it."""

    labeled: Target
    unlabeled: Target
    statistics: Statistics

    def mixed(self, boxes: Tensor) -> Labels:
        """CutMix of the unlabelled views."""
        return self._replace(unlabeled=self.unlabeled.mixed(boxes))


class Mutual(Method):
    """Labelled views are labelled and learned like unlabelled ones, beside their true labels."""

    networks: ClassVar[int] = 2
    label_names: ClassVar[tuple[str, ...]]
    """Of all labels that are made in a step."""

    def plan_labels(self, name: str, index: int, labeled: Sequence[int], unlabeled: Sequence[int]) -> Plan:
        """For `labels` of that name: what psi draws for labelled and unlabelled views. Each name has other draws."""
        start = APART * 2 * self.label_names.index(name)
        slots = (*(start + slot for slot in labeled), *(start + APART + slot for slot in unlabeled))
        return under(name, self.psi.plan(index, slots))

    def plan(self, index: int, progress: float, labeled: Sequence[int], unlabeled: Sequence[int]) -> Plan:
        plan = super().plan(index, progress, labeled, unlabeled)
        for name in self.label_names:
            plan |= self.plan_labels(name, index, labeled, unlabeled)
        return plan | under("points/unlabeled", self.loss.plan(index, unlabeled))

    def labels(self, name: str, logits: Logits, valid: Tensor, step: Step) -> Labels:
        """Psi of a network's prediction of all views; `valid` are the unlabelled pixels that are meant."""
        assert step.labeled.leaf is not None
        meant = torch.cat([step.labeled.leaf >= 0, valid])
        both = Prediction(torch.cat(logits.detach()), meant, part(step.plan, name), step.heard())
        target, statistics = self.psi(both, Prediction(both.logits[:0], both.valid[:0]))
        count = len(step.labeled)
        return Labels(target.cut(0, count), target.cut(count, len(both.logits)), statistics)

    @abstractmethod
    def cross_loss(self, logits: Logits, labels: Labels, step: Step) -> Tensor:
        """Of one network against labels of the other."""

    def summed(self, logits: Logits, labels: Labels, step: Step) -> tuple[Tensor, Tensor]:
        """The losses of all labelled pixels, and of all unlabelled ones."""
        on_labeled = self.loss(logits.labeled, labels.labeled, part(step.plan, "points/labeled"))
        return on_labeled, self.loss(logits.unlabeled, labels.unlabeled, part(step.plan, "points/unlabeled"))


def together(*statistics: Statistics) -> Statistics:
    """Of all labels that were made."""
    return {
        name: (sum((s[name][0] for s in statistics[1:]), first), sum((s[name][1] for s in statistics[1:]), count))
        for name, (first, count) in statistics[0].items()
    }
