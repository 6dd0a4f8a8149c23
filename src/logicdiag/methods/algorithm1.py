"""Algorithm 1 of LogicDiag's supplement (Liang et al., ICCV 2023): one view, no teacher, labelled and unlabelled pixels
together.

    L = L(p_s, o_s) + lambda L(p, o_r)

p_s and o_s are predictions and labels of labelled pixels, p the predictions of labelled and unlabelled ones. o_r are
the pseudo labels that p makes of itself: o = (p > 0.5), repaired by a diagnosis that is drawn by its likelihood
(psi = diagnosis with `psi.strategy: sampling`). Eq. 2 (`fixmatch` with psi = diagnosis) is the default reading of the
paper; this is the other one.

Constants: the paper has lambda = 5 and names no ramp (`method.weight: 5`, `method.ramp: [0, 0]`). There is no averaged
teacher, and `method.teacher_decay` above 0 is refused.

Where ours differs:
- By default lambda is 1 and rises between 0.3 and 0.6 of the run: a network that labels for itself would learn its own
  first mistakes.
- Labelled and unlabelled views go through the network in one pass, so they share batch-norm statistics, as in all our
  methods; the pseudocode has two passes.
- Pixels of labelled views that have no label do not count: what they show may be none of the classes, and the rules
  say that every pixel is one.
- L, for which the pseudocode names the binary cross entropy as an example, is the loss of all methods; see
  `supervised`. Psi is a choice, and by default learns only the sure levels of a pixel (`psi.levels: 0` for all).
- The student is evaluated, as in the paper; of all our methods it is the only one without an average to evaluate. So it
  is fair to hold it against others with `method.teacher_decay: 0`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..errors import ConfigError
from ..plan import Plan, part
from ..pseudo.target import Prediction
from .config import MethodConfig
from .method import APART, Losses, Method, Paper, Step


class Algorithm1(Method):
    paper = Paper("LogicDiag, Alg. 1", "Liang et al.", "ICCV", 2023)
    learned, taught = 2, 0
    averaged = 0
    default_decay = 0.0

    @classmethod
    def decay(cls, config: MethodConfig, steps: int | None = None) -> float:
        if (decay := super().decay(config, steps)) > 0:
            raise ConfigError(f"method.teacher_decay is {decay}, but algorithm1 has no teacher; leave it null")
        return decay

    def plan(self, index: int, progress: float, labeled: Sequence[int], unlabeled: Sequence[int]) -> Plan:
        plan = super().plan(index, progress, labeled, unlabeled)
        return plan | self.plan_target(index, (*labeled, *(slot + APART for slot in unlabeled)))

    def losses(self, step: Step) -> Losses:
        labeled, unlabeled = step.labeled, step.unlabeled
        assert unlabeled is not None
        assert labeled.leaf is not None
        logits = self.predict(torch.cat([labeled.image, unlabeled.image]))
        valid = torch.cat([labeled.leaf >= 0, unlabeled.valid])
        own = Prediction(logits.detach(), valid, part(step.plan, "psi"), step.heard())
        target, statistics = self.psi(own, Prediction(own.logits[:0], valid[:0]))
        supervised = self.labeled_loss(logits[: len(labeled)], step)
        summed = self.loss(logits, target, part(step.plan, "points/unlabeled"))
        both = summed / (step.labeled_pixels + step.unlabeled_pixels)
        total = supervised + step.plan["weight"] * both
        return Losses(total, {"labeled": supervised, "unlabeled": both}, statistics)
