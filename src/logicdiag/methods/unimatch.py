"""UniMatch (Yang et al., CVPR 2023): two strong views, and the weak view with features dropped.

    L = L^l + lambda ( 1/4 H(s1, psi(w)) + 1/4 H(s2, psi(w)) + 1/2 H(fp, psi(w)) )

s1 and s2 are strong views of one weak view w, with CutMix of their own; fp is w decoded from features of which each
channel is dropped with probability 1/2 (`method.feature_dropout`), the rest scaled up.

Constants: lambda = 1 at once, a threshold of 0.95 (VOC 2012; 0 for Cityscapes), and no averaged teacher
(`method.teacher_decay: 0`).

Where ours differs:
- Boxes of CutMix come from the neighbour in the batch, the paper's from a second batch: one is enough, and a label is
  made once.
- The authors halve the whole of L. That is a factor of the learning rate, and L^l is to weigh alike in all methods.
- Labels are made by an averaged teacher (decay 0.996, less in a short run), which is also the network that is
  evaluated, so that methods are compared with the same kind of network; or by the student as it is at inference, so
  that a label does not depend on its neighbours in the batch. Theirs are made by the student in the pass that learns,
  in training mode, but for what comes in by CutMix.
- Lambda rises between 0.3 and 0.6 of the run (`method.ramp`), which keeps the noise of early labels from the student.
- All views share one pass, and w is decoded with features dropped alone; theirs take two, and w is decoded both ways.
  Labels are made in a pass of their own here, so the student need not decode w as it is.
- Which channels fall is keyed by seed, step and place in the batch, as all our draws are: processes and interruptions
  change nothing.
- L^l is the one of all methods; theirs mines hard examples on Cityscapes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..plan import Plan, Planned, part, under
from .features import FeatureDropout
from .method import Losses, Method, Network, Paper, Setting, Step

STRONG, FEATURES = 0.25, 0.5


class UniMatch(Method):
    paper = Paper("UniMatch", "Yang et al.", "CVPR", 2023)
    learned, taught = 4, 1

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.dropout = FeatureDropout(self.config.feature_dropout, self.seed)
        self.features: Network = self.student.features
        self.decode: Network = self.student.decode

    def compile(self, compiled: Callable[[Network], Network]) -> None:
        super().compile(compiled)
        self.features, self.decode = compiled(self.student.features), compiled(self.student.decode)

    def plan(self, index: int, progress: float, labeled: Sequence[int], unlabeled: Sequence[int]) -> Plan:
        plan = super().plan(index, progress, labeled, unlabeled) | self.plan_target(index, unlabeled)
        for stream in ("strong", "strong2"):
            plan |= self.plan_view(stream, index, unlabeled)
        return plan | under("kept", self.dropout.plan(self.student.encoder, index, unlabeled))

    def losses(self, step: Step) -> Losses:
        unlabeled = step.unlabeled
        assert unlabeled is not None
        weak = self.teach(unlabeled.image)
        first, first_boxes = self.strong(unlabeled.image, part(step.plan, "strong"))
        second, second_boxes = self.strong(unlabeled.image, part(step.plan, "strong2"))
        images = (step.labeled.image, unlabeled.image, first, second)
        on_labeled, on_dropped, on_first, on_second = self._forward(images, part(step.plan, "kept"))
        target, statistics = self.target(weak, on_labeled, step)
        supervised = self.labeled_loss(on_labeled, step)
        strong = self.unlabeled_loss(on_first, target.mixed(first_boxes), step)
        strong = strong + self.unlabeled_loss(on_second, target.mixed(second_boxes), step)
        features = self.unlabeled_loss(on_dropped, target, step)
        consistency = STRONG * strong + FEATURES * features
        total = supervised + step.plan["weight"] * consistency
        parts = {"labeled": supervised, "unlabeled": consistency, "features": features}
        return Losses(total, parts, statistics)

    def _forward(self, images: tuple[Tensor, Tensor, Tensor, Tensor], kept: Planned) -> tuple[Tensor, ...]:
        """One pass of the encoder over labelled, weak and both strong views, and one of the decoder, for which features
        of the weak ones are dropped.
        """
        count, more = len(images[0]), len(images[1])
        weak, size = slice(count, count + more), (images[0].shape[-2], images[0].shape[-1])
        with self.autocast():
            features = self.features(torch.cat(images))
            decoded = tuple(
                torch.cat([f[:count], self.dropout(f[weak], kept[str(level)]), f[count + more :]])
                for level, f in enumerate(features)
            )
            logits: Tensor = self.decode(decoded, size)
        return tuple(logits.split([len(image) for image in images]))
