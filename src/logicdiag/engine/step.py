"""One optimiser step: the losses of its micro-batches, then the optimiser, then the teacher."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..data.loader import Views
from ..data.views import draws
from ..errors import ProbabilityError
from ..methods.method import Method, Step
from ..plan import Plan, Planned, moved, under
from .config import TrainConfig
from .distributed import World
from .optimizer import Optimizer
from .record import Record
from .watch import diverged

Batches = Sequence[tuple[Views, Views | None]]
"""The labelled and unlabelled views of each micro-batch of a step."""


class Stepper:
    """What is decided on the host is planned first; `move` is then a function of tensors alone."""

    def __init__(self, method: Method, optimizer: Optimizer, record: Record, here: World, config: TrainConfig) -> None:
        self.method, self.optimizer, self.record, self.here, self.config = method, optimizer, record, here, config

    def __call__(self, index: int, batches: Batches) -> None:
        (chance,) = draws(self.config.seed, "dropout", index, (self.here.rank,))
        torch.manual_seed(int(chance.integers(1 << 62)))  # for what the network itself draws
        self.move(index, batches, [moved(plan, self.here.device) for plan in self.plans(index, batches)])
        self.record.steps += 1

    def plans(self, index: int, batches: Batches) -> list[Plan]:
        progress = index / self.config.steps
        schedule = under("optimizer", self.optimizer.plan(index))
        return [
            schedule | self.method.plan(index, progress, labeled.slots, () if unlabeled is None else unlabeled.slots)
            for labeled, unlabeled in batches
        ]

    def move(self, index: int, batches: Batches, plans: Sequence[Planned]) -> None:
        labeled_pixels, unlabeled_pixels = self.pixels(batches)
        for (labeled, unlabeled), plan in zip(batches, plans, strict=True):
            try:
                losses = self.method.losses(Step(labeled, unlabeled, labeled_pixels, unlabeled_pixels, plan))
            except ProbabilityError:  # psi was given no numbers
                raise diverged(index) from None
            self.optimizer.backward(losses.total)
            self.record.add(losses.names, losses.table())
        self.here.add_gradients(self.optimizer.parameters)
        self.optimizer.step(index, plans[0])
        self.method.follow(index, plans[0])

    def pixels(self, batches: Batches) -> tuple[Tensor, Tensor]:
        """Pixels of the whole step that the two losses are means over."""
        counts = torch.zeros(2, dtype=torch.float64, device=self.here.device)
        for labeled, unlabeled in batches:
            assert labeled.leaf is not None
            counts[0] += (labeled.leaf >= 0).sum()
            if unlabeled is not None:
                counts[1] += unlabeled.valid.sum()
        counts = self.here.add(counts).clamp(min=1).float()
        return counts[0], counts[1]
