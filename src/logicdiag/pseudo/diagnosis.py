"""Psi by reasoning: labels that break the rules are repaired by a minimal diagnosis (the paper's method)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..data.views import draws
from ..errors import choose
from ..kernels.taken import Keyed
from ..logic.diagnosis import Degrees, Diagnoser
from ..logic.fast import Fast
from ..logic.knowledge import KnowledgeBase
from ..logic.repair import Result
from ..plan import Plan
from .target import Prediction, Statistics, Target, counted

if TYPE_CHECKING:
    from ..kernels.triton_loss import Intervals

WEIGHTS = {
    "one": "every pixel counts alike (the paper)",
    "posterior": "a pixel counts by the probability of the diagnosis taken",
    "likelihood": "a pixel counts by the probability of all its labels together, as the outputs have it",
}
DRAWN = ("uniform", "predictive", "sampling")


def takes_one_leaf(knowledge: KnowledgeBase, strategy: str) -> bool:
    """Whether every repaired label is a path to one leaf."""
    return knowledge.families == "CDE" and knowledge.root_holds and strategy != "soft"


class Diagnosis:
    """Truth degrees over the whole batch, then a diagnosis for each unlabelled pixel.

    The domain of "for all x" is the labelled and the unlabelled pixels of the batch, over all processes: `reduce` adds
    a tensor up over them, in place. What is drawn for a view depends on the seed, the step and the view's place in the
    global batch, so it does not matter how the batch is cut among processes.
    """

    def __init__(
        self,
        diagnoser: Diagnoser,
        weight: str = "one",
        seed: int = 0,
        reduce: Callable[[Tensor], object] | None = None,
    ) -> None:
        self.diagnoser, self.seed, self.reduce = diagnoser, seed, reduce
        self.weight = choose("psi.weight", weight, WEIGHTS)
        self.single_leaf = takes_one_leaf(diagnoser.kb, diagnoser.strategy)
        self.intervals: Intervals | None = None

    @property
    def waits(self) -> bool:
        return not torch.cuda.is_available() or self._fast(torch.device("cuda", torch.cuda.current_device())) is None

    def plan(self, step: int, slots: Sequence[int]) -> Plan:
        """A seed for each view."""
        sources = draws(self.seed, "diagnosis", step, slots)
        return {"seeds": np.array([source.integers(1 << 62) for source in sources], np.int64)}

    @torch.no_grad()
    def __call__(self, unlabeled: Prediction, labeled: Prediction) -> tuple[Target, Statistics]:
        if (fast := self._fast(unlabeled.logits.device)) is not None:
            return self._fused(fast, unlabeled, labeled)
        probs = unlabeled.logits.float().sigmoid()
        degrees = self._degrees((probs, unlabeled.valid), (labeled.logits.float().sigmoid(), labeled.valid))
        result = self._diagnose(probs, unlabeled, degrees)
        weight = self._weight(unlabeled, result)
        labels: Tensor | None = None
        if not self.single_leaf:
            labels = result.revised.to(weight.dtype) if result.expected is None else result.expected
        target = Target(weight, result.leaf.clamp(min=0) if self.single_leaf else None, labels)
        statistics: Statistics = {"conflict": (result.conflict.sum(), unlabeled.valid.sum())}
        return target, statistics | counted(target, unlabeled.valid)

    def _fast(self, device: torch.device) -> Fast | None:
        """Fused kernels, where they do all of it."""
        fast = self.diagnoser.fast(device)
        if fast is None or not self.single_leaf:
            return None
        return fast if fast.measures or not self.diagnoser.uses_truth_degrees else None

    def _fused(self, fast: Fast, unlabeled: Prediction, labeled: Prediction) -> tuple[Target, Statistics]:
        """From logits to a leaf and a weight in few kernels, with no number for the host to wait for."""
        logits, valid = unlabeled.logits.flatten(2), unlabeled.valid.flatten(1)
        counted_pixels = valid.sum()
        if self.diagnoser.uses_truth_degrees:
            seen = labeled.valid.flatten(1)
            sums = fast.sums(logits, valid, True) + fast.sums(labeled.logits.flatten(2), seen, True)
            count = (counted_pixels + seen.sum()).double()
            if self.reduce is not None:
                self.reduce(sums)
                self.reduce(count)
            _, trust = fast.degrees(sums, count)
        else:
            trust = torch.ones(logits.shape[1], device=logits.device)
        found = fast.diagnose(logits, trust, unlabeled.plan["seeds"], valid, logits=True)
        assert found.prob is not None
        assert found.conflict is not None
        weight = valid.float()
        if self.weight == "posterior":
            weight = found.prob * valid
        elif self.weight == "likelihood":
            weight = torch.exp(-self._bce(logits, found.leaf)) * valid
        weight = weight.view_as(unlabeled.valid)
        target = Target(weight, found.leaf.view_as(unlabeled.valid))
        statistics: Statistics = {"conflict": (found.conflict.sum(), counted_pixels)}
        return target, statistics | {"counted": (weight.sum(), counted_pixels)}

    def _bce(self, logits: Tensor, leaf: Tensor) -> Tensor:
        """Of the labels that a leaf means, at each pixel."""
        from ..kernels.triton_loss import Intervals, path_bce

        if self.intervals is None:
            self.intervals = Intervals.of(self.diagnoser.kb.hierarchy.parents, logits.device)
        return path_bce(self.intervals, logits, leaf)

    def _degrees(self, *pixels: tuple[Tensor, Tensor]) -> Degrees:
        """Of probabilities, and which of their pixels are valid."""
        if not self.diagnoser.uses_truth_degrees:
            return {}
        meter = self.diagnoser.meter(pixels[0][0].device)
        for probs, valid in pixels:
            self.diagnoser.measure(meter, probs, 1, valid)
        if self.reduce is not None:
            meter.reduce(self.reduce)
        return meter.degrees()

    def _diagnose(self, probs: Tensor, p: Prediction, degrees: Degrees) -> Result:
        drawn = self.diagnoser.strategy in DRAWN
        chance = Keyed.of_views(p.plan["seeds"], probs.shape[2:]) if drawn else None
        probs = probs.transpose(0, 1).contiguous().transpose(0, 1)  # concepts first in memory: all views are one block
        return self.diagnoser(probs, 1, p.valid, chance, degrees)

    def _weight(self, unlabeled: Prediction, result: Result) -> Tensor:
        weight = torch.ones_like(result.log_prob)
        if self.weight == "posterior":
            weight = result.log_prob.exp()
        elif self.weight == "likelihood":
            logits = unlabeled.logits.to(weight.dtype)
            labels = result.revised.to(weight.dtype)
            weight = torch.exp(-F.binary_cross_entropy_with_logits(logits, labels, reduction="none").sum(1))
        return weight * unlabeled.valid
