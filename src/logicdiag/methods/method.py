"""What every method has: a student, perhaps an averaged teacher, psi, and a loss. A method arranges them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..data.config import ViewConfig
from ..data.loader import Views
from ..data.views import in_boxes, partner, plan_cutmix, plan_strong, strong_view
from ..errors import ConfigError
from ..models.segmenter import Segmenter
from ..models.teacher import AveragedTeacher
from ..pseudo.target import Prediction, Psi, Statistics, Target
from .config import MethodConfig
from .loss import Loss


@dataclass(frozen=True)
class Step:
    """A micro-batch, and where in the run it stands."""

    index: int
    """The optimiser step, from 0."""
    progress: float
    """Share of the run that is done, from 0 to 1."""
    labeled: Views
    unlabeled: Views | None
    labeled_pixels: Tensor
    """Of the whole step, over all micro-batches and processes: what the loss is divided by."""
    unlabeled_pixels: Tensor
    """Likewise the unlabelled ones, padding left out."""


@dataclass(frozen=True)
class Losses:
    total: Tensor
    parts: dict[str, Tensor]
    """What the total is made of, before lambda; for the record."""
    statistics: Statistics = field(default_factory=dict)


@dataclass
class Setting:
    """What a method is built from."""

    student: Segmenter
    psi: Psi
    loss: Loss
    config: MethodConfig
    views: ViewConfig
    seed: int = 0
    autocast: Callable[[], AbstractContextManager[object]] = nullcontext
    """Entered around every forward pass."""


class Method(ABC):
    """One algorithm: `losses` of a step; then the optimiser; then `follow`."""

    needs_unlabeled: ClassVar[bool] = True
    default_decay: ClassVar[float] = 0.996
    """Decay of the averaged teacher, unless the configuration says; 0: the student is its own teacher.

    One for all methods, so that they are compared with the same kind of network: the averaged one is also evaluated.
    """

    def __init__(self, setting: Setting) -> None:
        self.student, self.psi, self.loss = setting.student, setting.psi, setting.loss
        self.config, self.views, self.seed = setting.config, setting.views, setting.seed
        self.autocast = setting.autocast
        decay = self.default_decay if self.config.teacher_decay is None else self.config.teacher_decay
        if not 0 <= decay <= 1:
            raise ConfigError(f"method.teacher_decay is {decay}, expected a number from 0 to 1, or null")
        self.teacher = AveragedTeacher(self.student, decay) if self._averages(decay) else None
        start, stop = self.config.ramp
        if not 0 <= start <= stop <= 1:
            raise ConfigError(f"method.ramp is [{start}, {stop}], expected two rising shares of the run, from 0 to 1")

    def _averages(self, decay: float) -> bool:
        return decay > 0

    @abstractmethod
    def losses(self, step: Step) -> Losses: ...

    def follow(self, index: int) -> None:
        """After the optimiser's step."""
        if self.teacher is not None:
            self.teacher.update(self.student, index)

    @property
    def evaluated(self) -> Segmenter:
        """The network that is evaluated and used afterwards."""
        model = self.student if self.teacher is None else self.teacher.model
        assert isinstance(model, Segmenter)
        return model

    def state_dict(self) -> dict[str, Any]:
        return {} if self.teacher is None else {"teacher": self.teacher.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.teacher is not None:
            self.teacher.load_state_dict(state["teacher"])

    # ---- what methods are made of --------------------------------------------------------------

    def weight(self, step: Step) -> float:
        """Lambda, on its way up the ramp."""
        return self.weight_at(step.progress)

    def weight_at(self, progress: float) -> float:
        start, stop = self.config.ramp
        if progress >= stop:
            return self.config.weight
        return self.config.weight * (progress - start) / (stop - start) if progress > start else 0.0

    def predict(self, image: Tensor) -> Tensor:
        """The student's logits, to be learned from."""
        with self.autocast():
            logits: Tensor = self.student(image)
        return logits.float()

    @torch.no_grad()
    def teach(self, image: Tensor) -> Tensor:
        """The teacher's logits: of the averaged one, or of the student as it is at inference."""
        model = self.student if self.teacher is None else self.teacher
        learning = self.student.training
        model.eval()
        with self.autocast():
            logits: Tensor = model(image)
        self.student.train(learning)
        return logits.float()

    def target(
        self, teacher_logits: Tensor, unlabeled: Views, student_logits: Tensor, labeled: Views
    ) -> tuple[Target, Statistics]:
        """Psi of the teacher's prediction, beside what the student says of the labelled views."""
        assert labeled.leaf is not None
        probs = self.student.probs
        return self.psi(
            Prediction(probs(teacher_logits), unlabeled.valid, unlabeled.step, unlabeled.slots),
            Prediction(probs(student_logits.detach()), labeled.leaf >= 0, labeled.step, labeled.slots),
        )

    def labeled_loss(self, logits: Tensor, step: Step) -> Tensor:
        """Eq. 1: the mean over labelled pixels."""
        leaf = step.labeled.leaf
        assert leaf is not None
        target = Target((leaf >= 0).float(), leaf.clamp(min=0))
        return self.loss(logits, target, step.index, step.labeled.slots) / step.labeled_pixels

    def unlabeled_loss(self, logits: Tensor, target: Target, step: Step) -> Tensor:
        """Eq. 2: the mean over all unlabelled pixels; those that count nothing still count in the mean."""
        assert step.unlabeled is not None
        return self.loss(logits, target, step.index, step.unlabeled.slots) / step.unlabeled_pixels

    def strong(self, views: Views, stream: str, colour: bool = True) -> tuple[Tensor, Tensor]:
        """A strong view with CutMix, and the boxes that come from the partner."""
        key: Any = {"seed": self.seed, "stream": stream, "step": views.step, "slots": views.slots}
        image, size = views.image, (views.image.shape[-2], views.image.shape[-1])
        plan = plan_strong(self.views, **key) | plan_cutmix(size=size, probability=self.views.cutmix, **key)
        here = {name: torch.from_numpy(array).to(image.device) for name, array in plan.items()}
        if colour:
            image = strong_view(image, here)
        boxes = in_boxes(here["boxes"], size)
        return torch.where(boxes[:, None], partner(image), image), boxes
