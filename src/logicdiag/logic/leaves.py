"""What the outputs of all concepts say of the leaves: a score each, and by it a probability of every concept.

By `leaf`, a leaf's score is its own logit. By `path`, it is the sum of the logits on its path: outputs that are
independent give labels of which exactly that path is true a probability in proportion to exp(score), so the softmax of
the scores is the probability of each leaf given that the rules C, D and E hold. By `tree`, siblings share what their
parent has, from the top down, each by its own odds: a score is the sum over the path of how likely (in logs) a concept
is among its siblings. So how likely `animal` is has nothing to do with which animal it is, and what is learned of the
one does not touch the other.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int64, Integer
from torch import Tensor, nn

from ..errors import choose
from ..kernels.gpu import fuses
from .hierarchy import Hierarchy

if TYPE_CHECKING:
    from ..kernels.triton_shares import Siblings

DECISIONS = {
    "leaf": "by the leaves' own outputs",
    "path": "by the outputs on the whole path to each leaf",
    "tree": "by how likely each concept on the path to it is among its siblings",
}


class Leaves(nn.Module):
    """Tables of one hierarchy, to be moved to a device as other modules are.

    >>> h = Hierarchy.from_dict({"animal": ["bird", "cat"], "sky": None})
    >>> logits = torch.tensor([2.0, 1.0, 0.0, 2.5]).view(1, 4, 1)  # animal, bird, cat, sky
    >>> Leaves(h, "leaf").scores(logits).flatten(), Leaves(h, "path").scores(logits).flatten()
    (tensor([1.0000, 0.0000, 2.5000]), tensor([3.0000, 2.0000, 2.5000]))
    >>> Leaves(h, "tree").probs(logits).flatten()  # of animal what it has against sky; bird and cat share it
    tensor([0.3775, 0.2760, 0.1015, 0.6225])
    """

    channels: Int64[Tensor, " leaf"]
    """Of the leaves."""
    under: Float[Tensor, "n leaf"]
    """1 where the leaf is the concept, or below it."""
    above: Float[Tensor, "n n"]
    """1 where the second concept is the first, or above it."""
    below: Float[Tensor, "n n"]
    """1 where the second concept is below the first."""
    paths: Int64[Tensor, "leaf depth"]
    """Each leaf's path from the top; the leaf again where it is short."""
    reached: Float[Tensor, "n depth"]
    """1 down to the depth of each concept."""
    grouped: Int64[Tensor, " n"]
    """All concepts, siblings together."""
    group: Int64[Tensor, " n"]
    """The number of each concept's group of siblings."""

    def __init__(self, hierarchy: Hierarchy, decision: str = "leaf") -> None:
        super().__init__()
        self.decision = choose("model.decision", decision, DECISIONS)
        self.parents = hierarchy.parents
        channels = torch.tensor(hierarchy.leaf_indices)
        above = torch.zeros(len(hierarchy), len(hierarchy))
        for concept in range(len(hierarchy)):
            above[concept, list(hierarchy.path_indices(concept))] = 1
        paths = [list(hierarchy.path_indices(leaf)) for leaf in hierarchy.leaf_indices]
        depth = max(map(len, paths))
        self.register_buffer("channels", channels, persistent=False)
        self.register_buffer("under", above[channels].T.contiguous(), persistent=False)
        self.register_buffer("above", above, persistent=False)
        self.register_buffer("below", above.T - torch.eye(len(hierarchy)), persistent=False)
        rows = [path + path[-1:] * (depth - len(path)) for path in paths]
        self.register_buffer("paths", torch.tensor(rows), persistent=False)
        reached = torch.arange(depth) < above.sum(1, keepdim=True)
        self.register_buffer("reached", reached.float(), persistent=False)
        self.siblings: Siblings | None = None
        numbers = {parent: number for number, parent in enumerate(dict.fromkeys(self.parents))}
        group = torch.tensor([numbers[parent] for parent in self.parents])
        self.sizes: list[int] = group.bincount().tolist()
        self.register_buffer("group", group, persistent=False)
        self.register_buffer("grouped", group.argsort(stable=True), persistent=False)

    def scores(self, logits: Float[Tensor, "b n *size"]) -> Float[Tensor, "b leaf *size"]:
        if self.decision == "leaf":
            return logits.index_select(1, self.channels)
        each = self._among_siblings(logits) if self.decision == "tree" else _wide(logits)
        return torch.einsum("nl,bn...->bl...", self.under.to(each.dtype), each)

    def _among_siblings(self, logits: Float[Tensor, "b n *size"]) -> Float[Tensor, "b n *size"]:
        """The log of how likely each concept is among its siblings."""
        logits = _wide(logits)
        groups = logits.index_select(1, self.grouped).split(self.sizes, dim=1)
        return logits - torch.stack([odds.logsumexp(1) for odds in groups], 1).index_select(1, self.group)

    def shares(
        self, logits: Float[Tensor, "b n *size"], leaf: Integer[Tensor, " b *size"]
    ) -> Float[Tensor, "b depth *size"]:
        """The log of how likely each concept on the path to each pixel's leaf is among its siblings, from the top; 0
        where the path has ended, or the leaf is below 0. By the tree, their sum is the log of how likely the leaf is.

        >>> h = Hierarchy.from_dict({"animal": ["bird", "cat"], "sky": None})
        >>> logits = torch.tensor([2.0, 1.0, 0.0, 2.5]).view(1, 4, 1)
        >>> [Leaves(h, "tree").shares(logits, torch.tensor([[leaf]])).exp().flatten() for leaf in (0, 2)]
        [tensor([0.3775, 0.7311]), tensor([0.6225, 1.0000])]
        """
        if fuses(logits.device) and logits.dtype != torch.float64:
            return self._fused_shares(logits, leaf)
        known, leaf = (leaf >= 0)[:, None], leaf.long().clamp(min=0)
        each = self._among_siblings(logits).gather(1, self.paths[leaf].movedim(-1, 1))
        return each * (self.reached[self.channels[leaf]].movedim(-1, 1) * known).to(each.dtype)

    def _fused_shares(self, logits: Tensor, leaf: Tensor) -> Tensor:
        from ..kernels.triton_shares import Siblings, shares

        if self.siblings is None or self.siblings.order.device != logits.device:
            self.siblings = Siblings.of(self.parents, logits.device)
        found = shares(self.siblings, logits.flatten(2), leaf.flatten(1))
        return found.view(*found.shape[:2], *logits.shape[2:])

    def probs(self, logits: Float[Tensor, "b n *size"]) -> Float[Tensor, "b n *size"]:
        """Of every concept, given that exactly one leaf is true: never less than of anything below it."""
        scores = self.scores(logits)
        return torch.einsum("nl,bl...->bn...", self.under.to(scores.dtype), scores.softmax(1))

    def deepest_by_tree(
        self, logits: Float[Tensor, "b n h w"], leaf: Integer[Tensor, "b h w"], least: float
    ) -> tuple[Int64[Tensor, "b h w"], Float[Tensor, "b h w"]]:
        """As `deepest`, of what is decided by the tree; `probs` is not made."""
        leaf = leaf.long().clamp(min=0)
        likely = self.shares(logits, leaf).cumsum(1) >= math.log(least)  # never less than further down
        depth = likely.sum(1)
        sure = self.paths[leaf].gather(-1, (depth - 1).clamp(min=0)[..., None])[..., 0]
        return sure, (depth > 0).float()

    def deepest(
        self, probs: Float[Tensor, "b n h w"], leaf: Int64[Tensor, "b h w"], least: float
    ) -> tuple[Int64[Tensor, "b h w"], Float[Tensor, "b h w"]]:
        """On the path to each pixel's leaf, the channel of the last concept that is at least so likely; and 1 where
        there is such a concept, else 0 (and the topmost).
        """
        paths = self.paths.T[:, leaf]
        sure, some = paths[0], torch.zeros_like(probs[:, 0])
        for concept in paths:
            likely = probs.gather(1, concept[:, None])[:, 0] >= least
            sure = torch.where(likely, concept, sure)
            some = torch.where(likely, 1.0, some)
        return sure, some


def _wide(logits: Tensor) -> Tensor:
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
