"""AEL (Hu et al., NeurIPS 2021): training leans towards the classes that do badly.

A bank holds the confidence of each class c: a moving average of the mean probability that the student gives to c at
labelled pixels of c,  Conf_c <- alpha Conf_c + (1 - alpha) mean p(c).  Three things follow it:

1. Adaptive views. A class is drawn by softmax(1 - Conf). Unlabelled views: CutMix cuts out where the teacher sees that
   class (adaptive CutMix). Labelled views: its pixels are copied from another view (adaptive copy-paste).
2. Adaptive equalisation sampling. A pixel with pseudo label c is learned from at the rate
   s_c = ((1 - Conf_c) / max_c' (1 - Conf_c')) ** beta.
3. Dynamic re-weighting. A pixel weighs w = (max_c p(c)) ** gamma, p of the teacher, and the loss is a weighted mean:

       L = L^l + lambda  sum w H(h(A(u)), psi(g(u))) / sum w        over the sampled pixels

Constants: alpha 0.999, beta 1, gamma 2, copy-paste with probability 0.5, areas from 3 % of a view on, as in the
authors' code for VOC; all are options in `method.ael`. There, lambda = 1, the teacher's decay is 0.99 and psi's
threshold 0.7 (Cityscapes: none).

Where ours differs:
- The weight is told by psi and by w together, so that any psi will do; pixels that psi leaves out stay in the sum of w,
  as in the authors' code.
- With the hierarchical head, p is a softmax over the leaves' logits, for its own outputs do not add up to 1.
- The bank starts as the mean of what it has seen, class by class, so that it says something from the first step on,
  where the authors' starts at random; a class that a batch does not show is left alone, where in their code it counts
  as 0, and a batch shows few classes.
- Partners are neighbours in the batch, and the class is drawn from what the partner shows, so that no image has to be
  looked for; the paper draws one first and then looks for an image that shows it. Boxes have the sizes of our CutMix,
  around a random pixel of the class, and some views have none (`data.views.cutmix`), as in all our methods; the paper
  cuts the bounding box of an object, into every view.
- Pasted pixels stay where they are, at their size, and L^l is divided by the pixels that were labelled before, for they
  are counted before a step begins. What is pasted is drawn and measured as what is cut is, by one rule. The authors'
  code draws it by softmax(sqrt(1 - Conf)), leaves out five classes that are frequent in Cityscapes, asks for no area,
  and on Cityscapes pastes three classes at a time.
- Pixels are sampled by their pseudo label, and labelled views learn their labels alone, as in the equations; in the
  authors' code they are sampled by what the student says, and labelled views learn the teacher's labels of them, too,
  sampled and weighed alike.
- Colours change as in `fixmatch`, where theirs stay, and the labelled loss is the one of all methods, without hard
  example mining or an auxiliary head, so that methods differ in nothing but their arrangement.
- The teacher is in inference mode, so that a label does not depend on its neighbours in the batch; theirs in training
  mode. Its decay is 0.996, less in a short run, and one for all methods, for the average is also what is evaluated.
  Lambda rises between 0.3 and 0.6 of the run (`method.ramp`), which keeps the noise of early labels from the student.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64, Integer
from torch import Tensor

from ..data.views import draws, partner
from ..plan import Plan, Planned, part
from .fixmatch import FixMatch
from .memory import hashed, lots
from .method import Losses, Paper, Setting, Step
from .partition import Gather

BITS = 63
"""Of lots."""


class AEL(FixMatch):
    paper = Paper("AEL", "Hu et al.", "NeurIPS", 2021)
    memory = "confidence by class"

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.options = self.config.ael
        channels = self.student.leaf_channels
        self.bank = Bank(len(channels), self.options.momentum, channels.device)

    def plan(self, index: int, progress: float, labeled: Sequence[int], unlabeled: Sequence[int]) -> Plan:
        plan = super().plan(index, progress, labeled, unlabeled)
        plan["mix/seeds"] = np.array(
            [source.integers(1 << 62) for source in draws(self.seed, "ael.mix", index, unlabeled)], np.int64
        )
        plan["mix/chance"] = self._chance("ael.mix.class", index, unlabeled)
        plan["paste/chance"] = self._chance("ael.paste.class", index, labeled)
        sources = draws(self.seed, "ael.paste", index, labeled)
        plan["paste/is"] = np.array([source.random() < self.options.paste for source in sources], np.bool_)
        return plan

    def _chance(self, stream: str, index: int, slots: Sequence[int]) -> np.ndarray[Any, Any]:
        """With which the largest of logits is a draw from their softmax (Gumbel)."""
        classes = len(self.student.leaf_channels)
        return np.stack([source.gumbel(size=classes) for source in draws(self.seed, stream, index, slots)]).astype("f4")

    def losses(self, step: Step) -> Losses:
        step = self._pasted(step)
        labeled, unlabeled = step.labeled, step.unlabeled
        assert unlabeled is not None
        assert labeled.leaf is not None
        count = len(labeled)
        weak = self.teach(unlabeled.image)
        sure, seen = self.student.leaf_logits(weak).float().softmax(1).max(1)
        numbers = lots(step.plan["mix/seeds"], seen[0].numel()).view_as(seen)
        strong, boxes = self.strong(unlabeled.image, self._adapted(seen, unlabeled.valid, numbers, step.plan))
        logits = self.predict(torch.cat([labeled.image, strong]))
        target, statistics = self.target(weak, logits[:count], step)
        sampled = unlabeled.valid & taken(target.leaves(self.student.leaf_channels), self.rates(), numbers)
        weight = sure**self.options.gamma * sampled
        learned = torch.where(boxes, partner(weight), weight)
        total_weight, pixels = self.gather(torch.stack([learned.sum(), unlabeled.valid.sum()])).sum(0)
        target = replace(target, weight=target.weight * weight)
        supervised = self.labeled_loss(logits[:count], step)
        consistency = self.unlabeled_loss(logits[count:], target.mixed(boxes), step)
        consistency = consistency * pixels / total_weight.clamp(min=1)
        self.bank.update(self.student.leaf_logits(logits[:count]), labeled.leaf, self.gather)
        total = supervised + step.plan["weight"] * consistency
        statistics |= {"sampled": (sampled.sum(), unlabeled.valid.sum())}
        return Losses(total, {"labeled": supervised, "unlabeled": consistency}, statistics)

    def rates(self) -> Float[Tensor, " classes"]:
        """s_c: how often a pixel of each class is learned from."""
        need = 1 - self.bank.confidence
        return (need / need.max().clamp(min=1e-12)) ** self.options.beta

    def _adapted(self, seen: Tensor, valid: Tensor, numbers: Tensor, plan: Planned) -> Planned:
        """The plan of the strong view, with boxes where the partner shows a class that does badly."""
        view, theirs = part(plan, "strong"), partner(torch.where(valid, seen, -1))
        chosen = choose_class(self.bank.confidence, theirs, plan["mix/chance"], self.options.area)
        boxes = moved_to(view["boxes"], theirs == chosen[:, None, None], partner(numbers))
        return {**view, "boxes": boxes}

    def _pasted(self, step: Step) -> Step:
        """Adaptive copy-paste between neighbours among the labelled views."""
        views = step.labeled
        assert views.leaf is not None
        theirs = partner(views.leaf)
        chosen = choose_class(self.bank.confidence, theirs, step.plan["paste/chance"], self.options.area)
        pasted = (theirs == chosen[:, None, None]) & step.plan["paste/is"][:, None, None]
        image = torch.where(pasted[:, None], partner(views.image), views.image)
        return replace(step, labeled=replace(views, image=image, leaf=torch.where(pasted, theirs, views.leaf)))

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"bank": self.bank.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.bank.load_state_dict(state["bank"])


class Bank:
    """The confidence of each class; 0 before it has been seen."""

    def __init__(self, classes: int, momentum: float, device: torch.device) -> None:
        self.momentum = momentum
        self.confidence = torch.zeros(classes, device=device)
        self.updates = torch.zeros(classes, device=device)

    @torch.no_grad()
    def update(self, logits: Float[Tensor, "b classes h w"], leaf: Int64[Tensor, "b h w"], gather: Gather) -> None:
        """By what the student says of labelled views, those of all processes. The first steps count alike."""
        own = logits.float().softmax(1).gather(1, leaf.clamp(min=0)[:, None])[:, 0]
        pairs = [((own * (leaf == c)).sum(), (leaf == c).sum()) for c in range(len(self.confidence))]
        summed, count = gather(torch.stack([torch.stack(list(pair)) for pair in pairs])).sum(0).unbind(1)
        now, there = summed / count.clamp(min=1), count > 0
        kept = (self.updates / (self.updates + 1)).clamp(max=self.momentum)
        self.confidence.copy_(torch.where(there, kept * self.confidence + (1 - kept) * now, self.confidence))
        self.updates.add_(there)

    def state_dict(self) -> dict[str, Tensor]:
        return {"confidence": self.confidence, "updates": self.updates}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        for name, tensor in self.state_dict().items():
            tensor.copy_(state[name])  # where a captured step finds it


def choose_class(
    confidence: Float[Tensor, " classes"],
    leaf: Integer[Tensor, "b h w"],
    chance: Float[Tensor, "b classes"],
    area: float,
) -> Int64[Tensor, " b"]:
    """A class of each view, drawn by softmax(1 - Conf) from those that cover the area; -2 where none does."""
    shares = torch.stack([(leaf == c).flatten(1).float().mean(1) for c in range(len(confidence))], 1)
    there = (shares >= area) & (shares > 0)
    drawn = torch.where(there, 1 - confidence + chance, -torch.inf).argmax(1)
    return torch.where(there.any(1), drawn, -2)


def moved_to(
    boxes: Integer[Tensor, "b 4"], wanted: Bool[Tensor, "b h w"], numbers: Int64[Tensor, "b h w"]
) -> Integer[Tensor, "b 4"]:
    """The boxes around a wanted pixel, the one with the largest number, as far as the border lets them; as they were
    where no pixel is wanted.
    """
    height, width = wanted.shape[1:]
    pixel = torch.where(wanted, numbers, -1).flatten(1).argmax(1)
    top, left, bottom, right = boxes.long().unbind(1)
    tall, wide = bottom - top, right - left
    up = torch.minimum((pixel // width - tall // 2).clamp(min=0), height - tall)
    aside = torch.minimum((pixel % width - wide // 2).clamp(min=0), width - wide)
    there = wanted.flatten(1).any(1) & (tall > 0)
    moved = torch.stack([up, aside, up + tall, aside + wide], 1).to(boxes.dtype)
    return torch.where(there[:, None], moved, boxes)


def taken(
    leaf: Int64[Tensor, "b h w"], rates: Float[Tensor, " classes"], numbers: Int64[Tensor, "b h w"]
) -> Bool[Tensor, "b h w"]:
    """Pixels that are learned from, each at the rate of its class."""
    chance = hashed(numbers).double() / 2.0**BITS  # other numbers than those that moved the boxes
    return chance < rates[leaf.clamp(min=0)]
