"""ST++ (Yang et al., CVPR 2022): self-training in stages, and the images whose labels can be trusted come first.

1. A network learns from the labelled images alone. K snapshots of it are kept on the way.
2. Each unlabelled image u is ranked by its stability, how little its prediction M still changed:

       s(u) = 1 / (K - 1)  sum_{j < K} meanIoU(M_j(u), M_K(u))

   The stable half is labelled by this network, which is then frozen; a new one learns from labels and pseudo labels.
3. The other half is labelled by that second network, and a third one learns from all images.

In stages 2 and 3, L = L^l + lambda H(h(A(u)), psi(g(u))), where g is the network that labels.

Constants: K = 3, half of the images, as many epochs for each stage; all are options in `method.stages`. The paper has
lambda = 1, no threshold and no averaged teacher (`method.teacher_decay: 0`). Lambda holds in full from the first step
of stages 2 and 3 on, as in the paper: g has finished when it labels, so there is nothing for `method.ramp` to wait for.

Where ours differs:
- The stages are shares of the run's steps, 0.3, 0.3 and 0.4: all methods take as many steps.
- In stage 3 the second network labels all images, where in the paper the stable half keeps the labels of the first: so
  one frozen network is kept, and one pass labels.
- Pseudo labels are made by g on the weak view, as it is learned from, where the paper writes them down once, each by
  ten predictions (five sizes, mirrored or not); so psi hears of the whole batch, as in all methods, and labels fit any
  crop.
- Strong views are those of `fixmatch`, so that one can be held against the other: colours and blur as in the paper, but
  CutMix where it has Cutout.
- Labelled and unlabelled views have a mean each, as in `fixmatch`. The authors draw both into one batch, labelled
  images repeated until there are as many, and take one mean of it: half of ours, with lambda = 1.
- The network at the end of a stage labels; the authors' code takes the one that was best on the validation images,
  which decide nothing in our training.
- With an averaged teacher (decay 0.996 by default, less in a short run), it is the averaged network that is evaluated,
  so that methods are compared with the same kind of network; it is also ranked with, and frozen. It begins anew with
  each stage, as the student, the optimiser and its schedule do (`method.stages.anew`).
- A new student starts from the weights of the first, the very same ones, so that stages differ in nothing but what they
  learn from; theirs has a new random decoder.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Integer
from torch import Tensor

from ..errors import ConfigError
from ..models.segmenter import Segmenter
from ..plan import Plan, Planned
from .config import MethodConfig, StagesConfig
from .fixmatch import FixMatch
from .method import Losses, Network, Paper, Setting, Step
from .stages import Between

LABELS, RELIABLE, ALL = range(3)
"""The stages."""


class STPP(FixMatch):
    paper = Paper("ST++", "Yang et al.", "CVPR", 2022)
    learned, taught = 2, 1
    memory = "the stage before, a ranking"
    labels_alone = StagesConfig.shares[LABELS]

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.options = self.config.stages
        self.labeler: Segmenter = copy.deepcopy(self.evaluated).requires_grad_(False).eval()
        """The network of the stage before."""
        self.labeling: Network = self.labeler
        self.first = _copy(self.student)
        """What new students start from."""
        self.snapshots: list[dict[str, Tensor]] = []
        self.stage, self.began = LABELS, 0
        self.reliable: list[int] = []

    @classmethod
    def decay(cls, config: MethodConfig, steps: int | None = None) -> float:
        """Of the average of its shortest stage, where each begins with a new one."""
        if steps is not None and config.stages.anew:
            steps = max(1, round(steps * min(config.stages.shares)))
        return super().decay(config, steps)

    @property
    def frozen(self) -> tuple[Segmenter, ...]:
        return (self.labeler,)

    def compile(self, compiled: Callable[[Network], Network]) -> None:
        super().compile(compiled)
        self.labeling = compiled(self.labeler)

    # ---- stages --------------------------------------------------------------------------------

    def restarts(self, steps: int) -> tuple[int, ...]:
        return self._starts(steps) if self.options.anew else (0,)

    def pauses(self, steps: int) -> tuple[int, ...]:
        return *self._snapshots(steps), *self._starts(steps)[1:]

    def _starts(self, steps: int) -> tuple[int, int, int]:
        first, second, _ = self.options.shares
        starts = (0, round(steps * first), round(steps * (first + second)))
        if not 2 <= starts[1] < starts[2] < steps:
            raise ConfigError(
                f"train.steps is {steps}, which method.stages.shares {list(self.options.shares)} cuts into stages that "
                f"begin at {starts[0]}, {starts[1]} and {starts[2]}; the first takes at least two steps, the others one"
            )
        return starts

    def _snapshots(self, steps: int) -> tuple[int, ...]:
        """All but the last, which is the network at the end of the first stage."""
        count, stop = self.options.snapshots, self._starts(steps)[1]
        return tuple(sorted({round(stop * number / count) for number in range(1, count)} - {0, stop}))

    @property
    def offered(self) -> Sequence[int] | None:
        return {LABELS: (), RELIABLE: self.reliable, ALL: None}[self.stage]

    def pause(self, index: int, between: Between) -> None:
        if index not in self._starts(between.steps):
            self.snapshots.append(_copy(self.evaluated))
            return
        self.stage += 1
        if self.stage == RELIABLE:
            networks = [copy.deepcopy(self.labeler) for _ in self.snapshots]
            for network, snapshot in zip(networks, self.snapshots, strict=True):
                network.load_state_dict(snapshot)
            scores = between.measure([*networks, self.evaluated], stability)
            self.reliable, self.snapshots = most_stable(scores, self.options.reliable), []
        self.labeler.load_state_dict(self.evaluated.state_dict())
        if self.options.anew:
            self.student.load_state_dict(self.first)
            for teacher in self.teachers:
                teacher.model.load_state_dict(self.first)
            self.began = index
            between.restart()

    # ---- a step --------------------------------------------------------------------------------

    def weight_at(self, progress: float) -> float:
        """Lambda in full: who labels has finished, and stage 1, on labels alone, does what a ramp is for."""
        return self.config.weight

    def plan(self, index: int, progress: float, labeled: Sequence[int], unlabeled: Sequence[int]) -> Plan:
        plan_of = super().plan if unlabeled else super(FixMatch, self).plan
        plan = plan_of(index, progress, labeled, unlabeled)
        if self.teacher is not None:
            plan["decay"].fill(self.teacher.decay_at(index - self.began))
        return plan

    def losses(self, step: Step) -> Losses:
        if step.unlabeled is not None:
            return super().losses(step)
        supervised = self.labeled_loss(self.predict(step.labeled.image), step)
        return Losses(supervised, {"labeled": supervised})

    @torch.no_grad()
    def teach(self, image: Tensor, which: int = 0) -> Tensor:
        with self.autocast():
            logits: Tensor = self.labeling(image)
        return logits

    def follow(self, index: int, plan: Planned) -> None:
        super().follow(index - self.began, plan)

    # ---- what going on needs -------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        stages = {"stage": self.stage, "began": self.began, "reliable": self.reliable, "snapshots": self.snapshots}
        first = {"first": self.first} if self.stage < ALL else {}
        return super().state_dict() | stages | first | {"labeler": self.labeler.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.stage, self.began, self.reliable = state["stage"], state["began"], state["reliable"]
        self.snapshots = state["snapshots"]
        if self.stage < ALL:
            self.first = state["first"]
        self.labeler.load_state_dict(state["labeler"])


def stability(leaves: Sequence[Integer[Tensor, "h w"]]) -> float:
    """The mean IoU between the last of some predictions of an image and each one before.

    >>> stability([torch.tensor([[0, 0, 1, 1]]), torch.tensor([[0, 1, 1, 1]])])  # 1/2 and 2/3
    0.5833333333333333
    """
    *earlier, last = leaves
    return sum(mean_iou(one, last) for one in earlier) / len(earlier)


def mean_iou(one: Integer[Tensor, "h w"], other: Integer[Tensor, "h w"]) -> float:
    """Over the classes that stand in one or the other."""
    classes = int(torch.maximum(one.max(), other.max())) + 1
    both = torch.bincount(one[one == other], minlength=classes).double()
    either = (
        torch.bincount(one.flatten(), minlength=classes) + torch.bincount(other.flatten(), minlength=classes) - both
    )
    return float((both / either)[either > 0].mean())


def most_stable(scores: Sequence[float], share: float) -> list[int]:
    """The numbers of the images that rank first, in their own order; of equal ones, the first ones.

    >>> most_stable([0.2, 0.9, 0.5, 0.9, 0.1], 0.5)
    [1, 3]
    """
    ranked = sorted(range(len(scores)), key=lambda image: -scores[image])
    return sorted(ranked[: max(1, int(share * len(scores)))])


def _copy(network: Segmenter) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in network.state_dict().items()}
