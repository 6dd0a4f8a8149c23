"""What every method has: one or more students, perhaps averaged teachers, psi, and a loss. A method arranges them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor, nn

from ..data.config import ViewConfig
from ..data.loader import Views
from ..data.views import in_boxes, partner, plan_cutmix, plan_strong, strong_view
from ..errors import ConfigError
from ..models.segmenter import Segmenter
from ..models.teacher import AveragedTeacher
from ..plan import Plan, Planned, part, under
from ..pseudo.target import Prediction, Psi, Statistics, Target
from .config import MethodConfig
from .loss import Loss
from .partition import Gather, alone
from .stages import Stages

Network = Callable[..., Any]
AVERAGES = 15
"""A decay of 1 - 1/k averages over k steps. Over a sixth of the run teachers lag, and over two thirds they are lost;
over a fifteenth, or a twelfth, they are as good as the student (docs/choosing.md, docs/generated.md).
"""
APART = 1 << 20
"""Keeps the places of views apart for which something is drawn twice in a step."""


@dataclass(frozen=True)
class Step:
    """A micro-batch, and all that its step needs beside: tensors, and nothing that the host has to say."""

    labeled: Views
    unlabeled: Views | None
    labeled_pixels: Tensor
    """Of the whole step, over all micro-batches and processes: what the loss is divided by."""
    unlabeled_pixels: Tensor
    """Likewise the unlabelled ones, padding left out."""
    plan: Planned
    """What `Method.plan` decided."""

    def heard(self) -> Tensor | None:
        """What a witness says of all views, the labelled ones first, of which nothing is said."""
        if self.unlabeled is None or self.unlabeled.heard is None:
            return None
        heard = self.unlabeled.heard
        return torch.cat([heard.new_zeros(len(self.labeled), heard.shape[1]), heard])


@dataclass(frozen=True)
class Losses:
    total: Tensor
    parts: dict[str, Tensor]
    """What the total is made of, before lambda; for the record."""
    statistics: Statistics = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """Of the rows of `table`; the same at every step of a method."""
        return ("loss", *(f"loss/{name}" for name in self.parts), *self.statistics)

    def table(self) -> Float64[Tensor, "k 2"]:
        """A row for each name: a sum and what it is a share of; 0 for losses, which are shares of nothing."""
        nothing = torch.zeros_like(self.total, dtype=torch.float64)
        rows = [(loss, nothing) for loss in (self.total, *self.parts.values())] + list(self.statistics.values())
        return torch.stack([number.detach().double() for row in rows for number in row]).view(-1, 2)


@dataclass
class Setting:
    """What a method is built from."""

    students: Sequence[Segmenter]
    """As many as the method has `networks`, of one architecture; the first is the one to use afterwards."""
    psi: Psi
    loss: Loss
    config: MethodConfig
    views: ViewConfig
    crop: int
    """Height and width of a view."""
    seed: int = 0
    autocast: Callable[[], AbstractContextManager[object]] = nullcontext
    """Entered around every forward pass."""
    gather: Gather = alone
    """How processes tell each other what they found."""
    steps: int | None = None
    """Of the whole run; None: many."""


class Paper(NamedTuple):
    """Where a method comes from."""

    title: str
    authors: str
    venue: str
    year: int


class Method(Stages, ABC):
    """One algorithm: the `plan` of a step, its `losses`; then the optimiser; then `follow`."""

    paper: ClassVar[Paper]
    learned: ClassVar[int]
    """What a step costs: views that go through a network and back, for each labelled and unlabelled view of it."""
    taught: ClassVar[int]
    """Likewise those that go through a network to make labels, and not back."""
    memory: ClassVar[str] = ""
    """What is remembered from step to step beside networks, in words."""
    needs_unlabeled: ClassVar[bool] = True
    needs_average: ClassVar[bool] = False
    """Whether it is nothing without an averaged teacher."""
    labels_alone: ClassVar[float] = 0.0
    """The share of a run's steps, by default, that have no unlabelled views though the method needs them."""
    networks: ClassVar[int] = 1
    """How many are trained, each from random weights of its own."""
    averaged: ClassVar[int] = 1
    """How many of them, the first ones, have an averaged copy where there are such copies at all."""
    default_decay: ClassVar[float] = 0.996
    """Decay of the averaged teacher, unless the configuration says; less in a run that is not `AVERAGES` times as long
    as what it averages over. 0: the student is its own teacher.

    One for all methods, so that they are compared with the same kind of network: the averaged one is also evaluated.
    """

    def __init__(self, setting: Setting) -> None:
        self.students, self.psi, self.loss = tuple(setting.students), setting.psi, setting.loss
        assert len(self.students) == self.networks
        self.config, self.views, self.crop, self.seed = setting.config, setting.views, setting.crop, setting.seed
        self.autocast, self.gather = setting.autocast, setting.gather
        self.config.check()
        decay = self.decay(self.config, setting.steps)
        averaged = self.students[: self.averaged] if decay > 0 else ()
        self.teachers = tuple(AveragedTeacher(student, decay) for student in averaged)
        self.learn: tuple[Network, ...] = self.students
        self.label: tuple[Network, ...] = self.teachers
        _refuse_twins(self.students, self.config.name)

    @classmethod
    def decay(cls, config: MethodConfig, steps: int | None = None) -> float:
        """Of the averaged teacher; 0: there is none. `steps` of the run; None: many."""
        decay = config.teacher_decay
        if decay is None:
            decay = min(cls.default_decay, 1.0 if steps is None else 1 - 1 / max(2, steps / AVERAGES))
        if not 0 <= decay <= 1:
            raise ConfigError(f"method.teacher_decay is {decay}, expected a number from 0 to 1, or null")
        if cls.needs_average and decay == 0:
            raise ConfigError(
                f"method.teacher_decay is {decay}, but {config.name} needs an averaged teacher: expected above 0, "
                "such as 0.99"
            )
        return decay

    @property
    def student(self) -> Segmenter:
        """The first, which most methods have alone."""
        return self.students[0]

    @property
    def teacher(self) -> AveragedTeacher | None:
        """The average of the first."""
        return self.teachers[0] if self.teachers else None

    @property
    def heads(self) -> tuple[nn.Module, ...]:
        """What is trained beside the students, at the rate of their decoders, and not evaluated."""
        return ()

    def compile(self, compiled: Callable[[Network], Network]) -> None:
        """Call the networks through a compiler from now on; who evaluates them calls them as they are."""
        self.learn = tuple(compiled(student) for student in self.students)
        self.label = tuple(compiled(teacher.model) for teacher in self.teachers)

    def plan(self, index: int, progress: float, labeled: Sequence[int], unlabeled: Sequence[int]) -> Plan:
        """What chance and the schedule decide in optimiser step `index`, counted from 0, for views at these places of
        the global batch; `progress` is the share of the run that is done, from 0 to 1.
        """
        plan = {"weight": np.array(self.weight_at(progress), np.float32)}
        if self.teacher is not None:
            plan["decay"] = np.array(self.teacher.decay_at(index), np.float32)
        return plan | under("points/labeled", self.loss.plan(index, labeled))

    @abstractmethod
    def losses(self, step: Step) -> Losses:
        """A function of tensors, of fixed shapes, that reads nothing back."""

    def follow(self, index: int, plan: Planned) -> None:
        """After the optimiser's step `index`."""
        for teacher, student in zip(self.teachers, self.students, strict=False):
            teacher.update(student, index, plan["decay"] if student.leaf_channels.is_cuda else None)

    @property
    def evaluated(self) -> Segmenter:
        """The network that is evaluated and used afterwards."""
        model = self.student if self.teacher is None else self.teacher.model
        assert isinstance(model, Segmenter)
        return model

    def state_dict(self) -> dict[str, Any]:
        """All that going on needs, but the first student, which who trains it keeps."""
        kept = {"teachers": self.teachers, "students": self.students[1:]}
        return {name: [network.state_dict() for network in networks] for name, networks in kept.items() if networks}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        kept = {"teachers": self.teachers, "students": self.students[1:]}
        for name, networks in kept.items():
            if networks:
                for network, saved in zip(networks, state[name], strict=True):
                    network.load_state_dict(saved)

    # ---- what methods are made of --------------------------------------------------------------

    def weight_at(self, progress: float) -> float:
        """Lambda, on its way up the ramp."""
        start, stop = self.config.ramp
        if progress >= stop:
            return self.config.weight
        return self.config.weight * (progress - start) / (stop - start) if progress > start else 0.0

    def predict(self, image: Tensor, which: int = 0) -> Tensor:
        """A student's logits, to be learned from."""
        with self.autocast():
            logits: Tensor = self.learn[which](image)
        return logits

    @torch.no_grad()
    def teach(self, image: Tensor, which: int = 0) -> Tensor:
        """A teacher's logits: of the averaged one, or of the student as it is at inference."""
        if not self.teachers:
            return self.infer(image, which)
        with self.autocast():
            logits: Tensor = self.label[which](image)
        return logits

    @torch.no_grad()
    def infer(self, image: Tensor, which: int = 0) -> Tensor:
        """A student's logits as it is at inference, to make labels of."""
        student = self.students[which]
        learning = student.training
        student.eval()
        logits = self.predict(image, which)
        student.train(learning)
        return logits

    def plan_target(self, index: int, unlabeled: Sequence[int]) -> Plan:
        """For `target` and `unlabeled_loss`."""
        return under("psi", self.psi.plan(index, unlabeled)) | under(
            "points/unlabeled", self.loss.plan(index, unlabeled)
        )

    def target(self, teacher_logits: Tensor, student_logits: Tensor, step: Step) -> tuple[Target, Statistics]:
        """Psi of the teacher's prediction, beside what the student says of the labelled views."""
        assert step.labeled.leaf is not None
        assert step.unlabeled is not None
        return self.psi(
            Prediction(teacher_logits, step.unlabeled.valid, part(step.plan, "psi"), step.unlabeled.heard),
            Prediction(student_logits.detach(), step.labeled.leaf >= 0),
        )

    def labeled_loss(self, logits: Tensor, step: Step) -> Tensor:
        """Eq. 1: the mean over labelled pixels."""
        leaf = step.labeled.leaf
        assert leaf is not None
        return self.loss(logits, self.loss.labels(leaf), part(step.plan, "points/labeled")) / step.labeled_pixels

    def unlabeled_loss(self, logits: Tensor, target: Target, step: Step) -> Tensor:
        """Eq. 2: the mean over all unlabelled pixels; those that count nothing still count in the mean."""
        return self.loss(logits, target, part(step.plan, "points/unlabeled")) / step.unlabeled_pixels

    def plan_view(self, stream: str, index: int, slots: Sequence[int], colour: bool = True) -> Plan:
        """Of a strong view: its colours, unless they stay, and the boxes of CutMix. Two views need two streams."""
        boxes = plan_cutmix(
            seed=self.seed,
            stream=stream,
            step=index,
            slots=slots,
            size=(self.crop, self.crop),
            probability=self.views.cutmix,
        )
        if not colour:
            return under(stream, boxes)
        colours = plan_strong(self.views, seed=self.seed, stream=stream, step=index, slots=slots)
        return under(stream, colours | boxes)

    def strong(self, image: Tensor, plan: Planned) -> tuple[Tensor, Tensor]:
        """A strong view with CutMix, and where it comes from the partner."""
        boxes = in_boxes(plan["boxes"], (image.shape[-2], image.shape[-1]))
        if "factors" in plan:
            return strong_view(image, plan, plan["boxes"]), boxes
        return torch.where(boxes[:, None], partner(image), image), boxes


def _refuse_twins(students: Sequence[Segmenter], name: str) -> None:
    """Networks that start alike see the same views, and stay alike."""
    first = [parameter.detach() for parameter in students[0].parameters()]
    for other in students[1:]:
        if all(torch.equal(mine, theirs) for mine, theirs in zip(first, other.parameters(), strict=True)):
            raise ConfigError(
                f"method.name is {name}, whose networks teach each other and must start apart, but model.weights holds "
                "a whole network, with which all start alike; name weights of an encoder, or leave them out"
            )
