"""One optimiser step: the losses of its micro-batches, then the optimiser, then the teacher."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..data.views import draws
from ..errors import ProbabilityError, RunError
from ..methods.method import Method, Step
from ..plan import Plan, Planned, moved, part, under
from .capture import Batches, Capture, Recorder
from .config import TrainConfig
from .distributed import World
from .optimizer import Optimizer
from .record import Record
from .watch import diverged


class Stepper:
    """What is decided on the host is planned first; `move` is then a function of tensors alone."""

    def __init__(self, method: Method, optimizer: Optimizer, record: Record, here: World, config: TrainConfig) -> None:
        self.method, self.optimizer, self.record, self.here, self.config = method, optimizer, record, here, config
        self.capture: Capture | None = None
        self.warn: Callable[[str], None] = lambda _: None

    def capture_with(self, recorder: Recorder, warn: Callable[[str], None]) -> None:
        """Capture a step from now on, after the first ones, and replay it."""
        self.capture, self.warn = Capture(self.move, self.here.device, recorder), warn

    def capture_again(self) -> None:
        """Steps are of another kind from now on."""
        if self.capture is not None:
            self.capture = Capture(self.move, self.here.device, self.capture.recorder)

    def __call__(self, index: int, batches: Batches) -> None:
        self._seed(index)
        plans = self.plans(index, batches)
        if self.capture is None:
            self._plainly(index, batches, plans)
        else:
            self._captured(self.capture, index, batches, plans)
        self.record.steps += 1

    def _seed(self, index: int) -> None:
        """For what the network itself draws; a captured step starts from there too."""
        (chance,) = draws(self.config.seed, "dropout", index, (self.here.rank,))
        torch.manual_seed(int(chance.integers(1 << 62)))

    def _plainly(self, index: int, batches: Batches, plans: Sequence[Plan]) -> None:
        self.move(index, batches, [moved(plan, self.here.device) for plan in plans])

    def _captured(self, capture: Capture, index: int, batches: Batches, plans: Sequence[Plan]) -> None:
        capturing = not capture.left
        try:
            capture(index, batches, plans)
        except RuntimeError as error:
            if not capturing or capture.captured is not None:
                raise
            cause = error.__context__ or error  # ending a capture that went wrong goes wrong too
            reason = (str(cause) or type(cause).__name__).splitlines()[0]
            if self.config.capture:
                raise RunError(f"train.capture is true, but the step could not be captured: {reason}") from error
            self.warn(f"the step could not be captured, and is slower: {reason}")
            self.capture = None
            self.optimizer.inner.zero_grad(set_to_none=True)
            self._seed(index)
            self._plainly(index, batches, plans)  # none of it had run

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
        self.optimizer.step(index, part(plans[0], "optimizer"))
        self.method.follow(index, plans[0])

    def pixels(self, batches: Batches) -> tuple[Tensor, Tensor]:
        """Pixels of the whole step that the two losses are means over."""
        labeled = torch.stack([_count(views.leaf) for views, _ in batches]).sum()
        unlabeled = [views.valid.sum() for _, views in batches if views is not None]
        counts = torch.stack([labeled, torch.stack(unlabeled).sum() if unlabeled else torch.zeros_like(labeled)])
        counts = self.here.add(counts).clamp(min=1).float()
        return counts[0], counts[1]


def _count(leaf: Tensor | None) -> Tensor:
    assert leaf is not None  # of labelled views
    return (leaf >= 0).sum()
