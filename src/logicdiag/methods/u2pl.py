"""U2PL (Wang et al., CVPR 2022): pixels too unreliable to be labelled still say what they are not.

    L = L^l + lambda (w_t L^u + lambda_c L^c)

An averaged teacher labels the weak view, a strong view learns. The share alpha_t = alpha_0 (1 - t / T) of unlabelled
pixels whose prediction has the greatest entropy H, those above gamma_t, is unreliable and left out of L^u, and
w_t = pixels / reliable pixels makes up for it. Representations z, of a small network on the decoder's features, are
learned by contrast:

    L^c = - 1 / (C M)  sum_c sum_i  log  e(z_ci, z_c+) / (e(z_ci, z_c+) + sum_j e(z_ci, z_cij-))
    e(a, b) = exp(cos(a, b) / tau)

- anchors z_ci: M pixels of class c by their label, or a reliable pseudo label, with p(c) > delta_p;
- positive z_c+: the mean of the teacher's representations of such pixels;
- negatives z_cij-: N of a queue for each class of what is likely not c: labelled pixels of another class that the
  teacher ranks c among the first r_l of; and unreliable pixels that it ranks c neither among the first r_l nor beyond
  r_h of.

Constants: alpha_0 0.2, lambda_c 0.1, tau 0.5, M 256 and N 50 (as in the authors' code), delta_p 0.3,
(r_l, r_h) = (3, 20), 256 channels; all are options in `method.u2pl`. Where there are fewer than r_h classes it leaves
none out. The paper has lambda = 1, no threshold, and a teacher decay of 0.99. The configurations that the authors
publish leave lambda_c at 1.

Where ours differs:
- The pseudo label is psi's and the partition comes on top; pixels that psi leaves out are no anchors. w_t counts by the
  partition alone, so that a strict psi does not raise it. L^u is a mean over all pixels, so that w_t L^u is one over
  the reliable ones; the authors' code weighs that mean by w_t once more, by 1.25 at the start and 1 at the end. Pixels
  are parted and counted before views are mixed, theirs afterwards: the partition is one of predictions, and does not
  hang on where boxes fall.
- With the hierarchical head, entropy, ranks and p(c) are those of a softmax over the leaves' logits, for its own
  outputs do not add up to 1.
- Teacher and student have the weak and the strong view; the paper's teacher sees the strong view a second time, in
  training mode, and pixels are parted by that. As positives and negatives need no place in the strong view, nothing is
  lost but a pass.
- Strong views are those of `fixmatch`; the authors' are mixed by CutMix and keep their colours. The labelled loss is
  the one of all methods, without hard example mining or an auxiliary head. So methods differ in nothing but their
  arrangement.
- The teacher's decay is 0.996, less in a short run, and one for all methods, for the average is also what is evaluated.
- Alpha_t falls with each step, not with each epoch: runs here are counted in steps. Lambda and its ramp, between 0.3
  and 0.6 of the run by default, hold for L^c, too; the paper trains a first epoch on labels alone instead. Either keeps
  early noise from the student.
- Anchors, positives and negatives are those of the equations. The authors' code takes unlabelled anchors and positives
  from the share alpha_t of least entropy alone, positives whatever their p(c), and as negatives of c only pixels with
  the label c, which leaves no labelled ones.
- Anchors are drawn without repetition, and L^c is a mean over those there are and over classes that have some: to draw
  one twice adds nothing to a mean.
- At most M new negatives of a class enter its queue in a step, drawn as anchors are, and it holds 4096 of them, where
  the authors' takes all and holds 30000, that of the first class 50000: queues are part of every checkpoint.
- A 3x3 convolution and a 1x1 one make z of the decoder's last features; the paper's head, with one convolution more,
  branches off before these. So any decoder will do, of which nothing is asked but its features.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..data.views import draws, partner
from ..models.norm import share_batch_norm
from ..models.teacher import AveragedTeacher
from ..plan import Plan, Planned, part
from ..pseudo.target import Target
from .contrast import Pixels, confident, contrast, negatives
from .memory import Memory, lots
from .method import Losses, Method, Network, Paper, Setting, Step
from .partition import Partition, entropy, parted


class U2PL(Method):
    paper = Paper("U2PL", "Wang et al.", "CVPR", 2022)
    learned, taught = 2, 2
    memory = "likely negatives"

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.options = self.config.u2pl
        width, classes = self.student.width, len(self.student.leaf_channels)
        self.options.check(classes)
        device, decay = self.student.leaf_channels.device, self.teachers[0].decay if self.teachers else 0.0
        self.projection = share_batch_norm(projection(width, self.options.channels).to(device)).train()
        self.averaged_projection = AveragedTeacher(self.projection, decay) if self.teachers else None
        self.queues = Memory(classes, self.options.queue, self.options.channels, device)
        self.both: Network = self.student.with_features
        self.both_taught: Network = self.evaluated.with_features
        self.project: Network = self.projection

    @property
    def heads(self) -> tuple[nn.Module, ...]:
        return (self.projection,)

    def compile(self, compiled: Callable[[Network], Network]) -> None:
        self.both = compiled(self.student.with_features)
        self.both_taught = compiled(self.evaluated.with_features) if self.teachers else self.both
        self.project = compiled(self.projection)

    def plan(self, index: int, progress: float, labeled: Sequence[int], unlabeled: Sequence[int]) -> Plan:
        plan = super().plan(index, progress, labeled, unlabeled) | self.plan_target(index, unlabeled)
        plan |= self.plan_view("strong", index, unlabeled)
        plan["unreliable"] = np.array(self.options.unreliable * (1 - progress), np.float32)
        sources = [
            *draws(self.seed, "contrast.labeled", index, labeled),
            *draws(self.seed, "contrast.unlabeled", index, unlabeled),
        ]
        plan["seeds"] = np.array([source.integers(1 << 62) for source in sources], np.int64)
        return plan

    def losses(self, step: Step) -> Losses:
        labeled, unlabeled = step.labeled, step.unlabeled
        assert unlabeled is not None
        count = len(labeled)
        taught, theirs = self._teach(torch.cat([labeled.image, unlabeled.image]))
        strong, boxes = self.strong(unlabeled.image, part(step.plan, "strong"))
        logits, mine = self._learn(torch.cat([labeled.image, strong]))
        target, statistics = self.target(taught[count:], logits[:count], step)
        leaves = self.student.leaf_logits(taught)
        found = parted(entropy(leaves[count:]), unlabeled.valid, step.plan["unreliable"], self.gather)
        target = target.only(found.reliable)
        supervised = self.labeled_loss(logits[:count], step)
        consistency = found.weight * self.unlabeled_loss(logits[count:], target.mixed(boxes), step)
        pixels = self._pixels(leaves, target, found, boxes, step, (mine.shape[-2], mine.shape[-1]))
        share = found.pixels / step.unlabeled_pixels  # of the step's pixels, where it is worked on in parts
        contrasted = share * contrast(rows(mine), rows(theirs), pixels, self.queues, self.options, self.gather)
        learned = consistency + self.options.weight * contrasted
        total = supervised + step.plan["weight"] * learned
        parts = {"labeled": supervised, "unlabeled": consistency, "contrast": contrasted}
        statistics |= {"reliable": (found.reliable.sum(), unlabeled.valid.sum())}
        return Losses(total, parts, statistics)

    def _learn(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """The student's logits and representations."""
        with self.autocast():
            logits, features = self.both(image)
            return logits, self.project(features)

    @torch.no_grad()
    def _teach(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """The teacher's; without one, those of the student as it is at inference."""
        if self.averaged_projection is None:
            self.student.eval()
            self.projection.eval()
            found = self._learn(image)
            self.student.train()
            self.projection.train()
            return found
        with self.autocast():
            logits, features = self.both_taught(image)
            return logits, self.averaged_projection(features)

    @torch.no_grad()
    def _pixels(
        self, leaves: Tensor, target: Target, found: Partition, boxes: Tensor, step: Step, size: tuple[int, int]
    ) -> Pixels:
        """What part pixels take in the contrast, at the size of the representations."""
        assert step.labeled.leaf is not None
        probs = at_size(leaves, size).float().softmax(1)
        own = at_size(step.labeled.leaf, size)
        pseudo = torch.where(target.weight > 0, target.leaves(self.student.leaf_channels), -1)
        sure = confident(torch.cat([own, at_size(pseudo, size)]), probs, self.options.confidence)
        pseudo = sure[len(own) :]
        mixed = torch.where(at_size(boxes, size), partner(pseudo), pseudo)
        not_these = negatives(own, at_size(found.unreliable, size), probs, self.options.ranks)
        return Pixels(
            lots(step.plan["seeds"], size[0] * size[1]).flatten(),
            torch.cat([sure[: len(own)], mixed]).flatten(),
            sure.flatten(),
            not_these.transpose(0, 1).flatten(1),
        )

    def follow(self, index: int, plan: Planned) -> None:
        super().follow(index, plan)
        if self.averaged_projection is not None:
            decay = plan["decay"] if self.student.leaf_channels.is_cuda else None
            self.averaged_projection.update(self.projection, index, decay)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {name: kept.state_dict() for name, kept in self._kept().items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        for name, kept in self._kept().items():
            kept.load_state_dict(state[name])

    def _kept(self) -> dict[str, Any]:
        kept = {"projection": self.projection, "queues": self.queues}
        averaged = {} if self.averaged_projection is None else {"averaged_projection": self.averaged_projection}
        return kept | averaged


def projection(width: int, channels: int) -> nn.Sequential:
    """From the decoder's features to representations."""
    return nn.Sequential(
        nn.Conv2d(width, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        nn.Conv2d(width, channels, 1),
    )


def rows(representations: Float[Tensor, "b d h w"]) -> Float[Tensor, "b*h*w d"]:
    """One for each pixel."""
    return representations.float().permute(0, 2, 3, 1).flatten(0, 2)


def at_size(tensor: Tensor, size: tuple[int, int]) -> Tensor:
    """The pixels that features of this size are about, corners on corners; of the last two dimensions."""
    for dim, (now, then) in zip((-2, -1), zip(tensor.shape[-2:], size, strict=True), strict=True):
        places = torch.arange(then, device=tensor.device, dtype=torch.float64) * ((now - 1) / max(then - 1, 1))
        tensor = tensor.index_select(dim, places.round().long())
    return tensor
