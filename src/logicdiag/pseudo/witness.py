"""Any psi, told by a witness: its weights multiply the teacher's odds among the children of one concept.

A network that read few labels takes a cat for a dog, and no rule of the tree objects. Somebody who knows the image may:
given that a pixel is of an animal, the odds that it is of a cat, by the network and by the witness, are multiplied, as
those of two witnesses who know nothing of each other. How likely `animal` is stays as it was, and that is what the
animals share, however low their own outputs are: where it holds exactly one of them does (rules D and E).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ..logic.hierarchy import Hierarchy
from ..logic.leaves import Leaves
from .target import Around, Prediction, Psi, Statistics, Target

NEARLY_ALL = -1e-6
"""The log of the greatest probability that a concept is given."""


class Witnessed(Around):
    """`concepts` are those that the witness weighs against their siblings; `decision` is the model's."""

    def __init__(
        self, psi: Psi, hierarchy: Hierarchy, concepts: Sequence[str], head: str, decision: str = "leaf"
    ) -> None:
        super().__init__(psi)
        self.weighing = Weighing(hierarchy, concepts, head)
        self.by_tree = Weighing(hierarchy, concepts, "tree") if decision == "tree" else None

    @torch.no_grad()
    def __call__(self, unlabeled: Prediction, labeled: Prediction) -> tuple[Target, Statistics]:
        if unlabeled.heard is None:
            return self.psi(unlabeled, labeled)
        logits, heard = unlabeled.logits, unlabeled.heard
        by_tree = None if self.by_tree is None else self._weighed(self.by_tree, logits, heard)
        return self.psi(unlabeled.saying(self._weighed(self.weighing, logits, heard), by_tree), labeled)

    def _weighed(self, weighing: Weighing, logits: Tensor, heard: Tensor) -> Tensor:
        if weighing.device != logits.device:  # once: every move makes the device wait
            weighing.to(logits.device)
        moved: Tensor = weighing(logits.float(), heard)
        return moved


class Weighing(nn.Module):
    """Logits of either head, and what is heard -> logits. With `tree` in place of the hierarchical head, logits whose
    odds among siblings are the product, for what is decided by the tree.

    >>> h = Hierarchy.from_dict({"animal": ["bird", "cat"], "sky": None})
    >>> logits = torch.tensor([[2.0, -1.0, -1.0, 0.0]]).view(1, 4, 1, 1)  # animal, bird, cat, sky
    >>> heard = torch.tensor([[1.0, 3.0, 1.0, 1.0]]).log()  # a bird rather than a cat, three to one
    >>> weighed = Weighing(h, ["bird", "cat"], "hierarchical")(logits, heard)
    >>> [round(float(p), 3) for p in weighed.sigmoid().flatten()]
    [0.881, 0.661, 0.22, 0.5]
    """

    def __init__(self, hierarchy: Hierarchy, concepts: Sequence[str], head: str) -> None:
        super().__init__()
        leaves = Leaves(hierarchy)
        # for each concept 1 where a channel is of it, or of something below it
        below = leaves.under if head == "flat" else leaves.above.T
        kind = {"flat": _Leaves, "tree": _Odds}.get(head, _Concepts)
        parents = dict.fromkeys(hierarchy.parent(name) for name in hierarchy.names if name in concepts)  # from the top
        groups = [[name for name in concepts if hierarchy.parent(name) == parent] for parent in parents]
        self.groups = nn.ModuleList(kind(hierarchy, group, below) for group in groups)

    @property
    def device(self) -> torch.device:
        return next(self.buffers()).device

    def forward(self, logits: Float[Tensor, "b c h w"], heard: Float[Tensor, "b n"]) -> Float[Tensor, "b c h w"]:
        for group in self.groups:
            logits = logits + group(logits, heard)
        return logits


class _Group(nn.Module, ABC):
    """Siblings that a witness weighs: by how much each channel moves."""

    group: Tensor
    below: Tensor

    def __init__(self, hierarchy: Hierarchy, concepts: Sequence[str], below: Tensor) -> None:
        super().__init__()
        group = torch.tensor([hierarchy.index(name) for name in concepts])
        self.register_buffer("group", group, persistent=False)
        self.register_buffer("below", below[group].clone(), persistent=False)

    def forward(self, logits: Tensor, heard: Tensor) -> Tensor:
        weights = heard.index_select(1, self.group)[:, :, None, None]
        told = (weights != 0).any(1, keepdim=True)  # where nothing is said nothing changes
        moved = torch.where(told, self.moved(logits, weights), 0.0)
        return torch.einsum("kc,bkhw->bchw", self.below, moved)

    @abstractmethod
    def moved(self, logits: Tensor, weights: Tensor) -> Tensor:
        """By how much each of them moves."""


class _Leaves(_Group):
    """Of the flat head, whose siblings have their share of one whole."""

    def moved(self, logits: Tensor, weights: Tensor) -> Tensor:
        share = torch.einsum("kc,bchw->bkhw", self.below, logits.softmax(1)).clamp(min=1e-30).log()
        return weights + share.logsumexp(1, keepdim=True) - (share + weights).logsumexp(1, keepdim=True)


class _Odds(_Group):
    """Of the hierarchical head where the tree decides, by which siblings share what their parent has anyway."""

    def moved(self, logits: Tensor, weights: Tensor) -> Tensor:
        odds = logits.index_select(1, self.group)
        return weights + odds.logsumexp(1, keepdim=True) - (odds + weights).logsumexp(1, keepdim=True)


class _Concepts(_Group):
    """Of the hierarchical head, whose siblings are given what their parent has."""

    siblings: Tensor

    def __init__(self, hierarchy: Hierarchy, concepts: Sequence[str], below: Tensor) -> None:
        super().__init__(hierarchy, concepts, below)
        above = hierarchy.parent(concepts[0])
        self.above = None if above is None else hierarchy.index(above)
        siblings = [hierarchy.index(name) for name in hierarchy.names if hierarchy.parent(name) == above]
        self.register_buffer("siblings", torch.tensor(siblings), persistent=False)

    def moved(self, logits: Tensor, weights: Tensor) -> Tensor:
        odds = logits.index_select(1, self.group)
        all_odds = logits.index_select(1, self.siblings).logsumexp(1, keepdim=True)
        theirs = odds.logsumexp(1, keepdim=True) - all_odds  # of a sibling that is not weighed nothing is said
        if self.above is not None:
            theirs = theirs + F.logsigmoid(logits[:, self.above : self.above + 1])
        likely = ((odds + weights).log_softmax(1) + theirs).clamp(max=NEARLY_ALL)
        return likely - torch.log(-torch.expm1(likely)) - odds
