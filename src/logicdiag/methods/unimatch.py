"""UniMatch (Yang et al., CVPR 2023): two strong views, and the weak view with features dropped.

    L = L^l + lambda ( 1/4 H(s1, psi(w)) + 1/4 H(s2, psi(w)) + 1/2 H(fp, psi(w)) )

s1 and s2 are strong views of one weak view w, with CutMix of their own; fp is w decoded from features of which each
channel is dropped with probability 1/2, the rest scaled up.

Where ours differs: boxes of CutMix come from the neighbour in the batch, the paper's from a second batch; the paper
halves L^l as well, which is a factor of the learning rate; which channels fall is keyed by seed, step and place in the
batch, as all our draws are. The paper has lambda = 1 and no averaged teacher (`method.teacher_decay: 0`).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..data.loader import Views
from ..data.views import draws
from ..errors import ConfigError
from .method import Losses, Method, Setting, Step

STRONG, FEATURES = 0.25, 0.5


class UniMatch(Method):
    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        if not 0 <= self.config.feature_dropout < 1:
            raise ConfigError(f"method.feature_dropout is {self.config.feature_dropout}, expected from 0 to below 1")

    def losses(self, step: Step) -> Losses:
        labeled, unlabeled = step.labeled, step.unlabeled
        assert unlabeled is not None
        weak = self.teach(unlabeled.image)
        first, first_boxes = self.strong(unlabeled, "strong")
        second, second_boxes = self.strong(unlabeled, "strong2")
        on_labeled, on_first, on_second, on_dropped = self._forward(labeled, unlabeled, first, second)
        target, statistics = self.target(weak, unlabeled, on_labeled, labeled)
        supervised = self.labeled_loss(on_labeled, step)
        strong = self.unlabeled_loss(on_first, target.mixed(first_boxes), step)
        strong = strong + self.unlabeled_loss(on_second, target.mixed(second_boxes), step)
        features = self.unlabeled_loss(on_dropped, target, step)
        consistency = STRONG * strong + FEATURES * features
        total = supervised + self.weight(step) * consistency
        parts = {"labeled": supervised, "unlabeled": consistency, "features": features}
        return Losses(total, parts, statistics)

    def _forward(self, labeled: Views, unlabeled: Views, first: Tensor, second: Tensor) -> tuple[Tensor, ...]:
        """One pass of the encoder over everything, one of the decoder with the dropped features beside."""
        count, more = len(labeled), len(unlabeled)
        images = torch.cat([labeled.image, unlabeled.image, first, second])
        with self.autocast():
            features = self.student.features(images)
            weak = slice(count, count + more)
            decoded = tuple(
                torch.cat([f[:count], self._drop(f[weak], unlabeled, level), f[count + more :]])
                for level, f in enumerate(features)
            )
            size = (images.shape[-2], images.shape[-1])
            logits = self.student.decode(decoded, size).float()
        on_labeled, on_dropped, on_first, on_second = logits.split([count, more, more, more])
        return on_labeled, on_first, on_second, on_dropped

    def _drop(self, features: Tensor, views: Views, level: int) -> Tensor:
        p, channels = self.config.feature_dropout, features.shape[1]
        kept = [g.random(channels) >= p for g in draws(self.seed, f"features{level}", views.step, views.slots)]
        mask = torch.from_numpy(np.stack(kept)).to(features.device, features.dtype)
        return features * (mask / (1 - p))[:, :, None, None]
