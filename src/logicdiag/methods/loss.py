"""Predictions against targets: per-pixel losses of both heads, and point-wise supervision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from ..data.views import draws
from ..errors import ConfigError, choose
from ..kernels.gpu import fuses
from ..kernels.layout import ROOT
from ..kernels.taken import Keyed
from ..logic.hierarchy import Hierarchy
from ..logic.leaves import Leaves
from ..plan import Plan, Planned
from ..pseudo.target import Target, at_points
from .config import LossConfig

if TYPE_CHECKING:
    from ..kernels.triton_loss import Intervals

REDUCTIONS = ("sum", "mean")
POINTS_BY = ("random", "uncertain")
OVERSAMPLED, UNCERTAIN = 3, 0.75
"""PointRend: of three times as many random points, the least sure make up three quarters."""


class Loss:
    """The summed loss of all pixels of some views; who calls it divides by the pixels of the whole step."""

    def __init__(
        self,
        config: LossConfig,
        hierarchy: Hierarchy,
        head: str,
        seed: int = 0,
        decision: str = "leaf",
        weights: Float[Tensor, " leaf"] | None = None,
    ) -> None:
        """`weights` of the leaves: what a labelled pixel of each counts, where the labels are; None: all alike."""
        self.config, self.head, self.seed = config, head, seed
        self.reduction = choose("loss.nodes", config.nodes, REDUCTIONS)
        choose("loss.points_by", config.points_by, POINTS_BY)
        if config.points is not None and config.points < 1:
            raise ConfigError(f"loss.points is {config.points}, expected a whole number of at least 1, or null")
        if config.leaf < 0:
            raise ConfigError(f"loss.leaf is {config.leaf}, expected 0 or more")
        self.weights = weights
        self.leaves = Leaves(hierarchy, decision)
        self.by_tree = head == "hierarchical" and decision == "tree" and config.leaf > 0
        self.leaf = 0.0 if self.by_tree else config.leaf
        """What the cross entropy of the leaves counts, where it is one over all of them."""
        self.paths, self.nodes = path_table(hierarchy), len(hierarchy)
        self.parents = hierarchy.parents if head == "hierarchical" else (ROOT,) * len(hierarchy.leaves)
        self.intervals: Intervals | None = None

    def plan(self, step: int, slots: Sequence[int]) -> Plan:
        """What chooses the points of each view: a seed."""
        if self.config.points is None:
            return {}
        sources = draws(self.seed, "points", step, slots)
        return {"seeds": np.array([source.integers(1 << 62) for source in sources], np.int64)}

    def labels(self, leaf: Int64[Tensor, "b h w"]) -> Target:
        """What masks say, -1 where they say nothing. Pixels count as their class does.

        Pseudo labels do not: a rare class that is taken by mistake would count the more, and teach more such mistakes.
        """
        known, leaf = (leaf >= 0).float(), leaf.clamp(min=0)
        return Target(known if self.weights is None else known * self.weights[leaf.long()], leaf)

    def __call__(self, logits: Float[Tensor, "b c h w"], target: Target, plan: Planned) -> Tensor:
        scale = 1.0
        if self.config.points is not None and self.config.points < logits[0, 0].numel():
            places = self._points(logits, plan)
            scale = logits[0, 0].numel() / self.config.points  # so that points stand for all pixels
            logits, target = at_points(logits, places), target.at(places)
        if self._fuses(logits, target):
            assert target.leaf is not None
            loss = self._fused(logits, target.leaf, target.weight, target.sure)
        else:
            loss = (self._pixels(logits.float(), target) * target.weight).sum()
        if self.by_tree and target.labels is None:
            loss = loss + self.config.leaf * (self._along_tree(logits, target) * target.weight).sum()
        return loss * scale

    def _fuses(self, logits: Tensor, target: Target) -> bool:
        if target.labels is not None or target.leaf is None:
            return False
        own = self.head == "flat" or self.leaf == 0 or self.leaves.decision == "leaf"  # leaves' own logits
        return fuses(logits.device) and logits.dtype != torch.float64 and own

    def _fused(self, logits: Tensor, leaf: Tensor, weight: Tensor, sure: Tensor | None) -> Tensor:
        """The same in one kernel each way, which reads the logits as they are."""
        from ..kernels.triton_loss import Intervals, leaf_loss

        if self.intervals is None:
            self.intervals = Intervals.of(self.parents, logits.device)
        per_node = 0.0 if self.head == "flat" else 1.0 / (self.nodes if self.reduction == "mean" else 1)
        per_leaf = 1.0 if self.head == "flat" else self.leaf
        sure = None if sure is None else sure.flatten(1)
        return leaf_loss(
            self.intervals, logits.flatten(2), leaf.flatten(1), weight.flatten(1), per_node, per_leaf, sure
        )

    def _pixels(self, logits: Float[Tensor, "b c ..."], target: Target) -> Float[Tensor, "b ..."]:
        if self.head == "flat":
            if target.leaf is None:
                raise ConfigError("a flat head learns from leaves, but the target has one label per concept")
            return F.cross_entropy(logits, target.leaf.long(), reduction="none")
        if target.labels is not None:
            return self._per_node(F.binary_cross_entropy_with_logits(logits, target.labels, reduction="none").sum(1))
        assert target.leaf is not None
        leaf = target.leaf.long()
        self._move(logits.device)
        if target.sure is not None:
            return self._sure_levels(logits, target.sure.long())
        loss = self._per_node(path_bce(logits, leaf, self.paths))
        if self.leaf:
            loss = loss + self.leaf * F.cross_entropy(self.leaves.scores(logits), leaf, reduction="none")
        return loss

    def _move(self, device: torch.device) -> None:
        """Once: every move makes the device wait."""
        if self.paths.device != device:
            self.paths = self.paths.to(device)
            self.leaves.to(device)

    def _sure_levels(self, logits: Float[Tensor, "b n ..."], sure: Int64[Tensor, "b ..."]) -> Float[Tensor, "b ..."]:
        """Nodes below the sure one are not looked at; of the leaves, those under it are right, whichever it is."""
        labels = self.leaves.above[sure].movedim(-1, 1).to(logits.dtype)
        below = self.leaves.below[sure].movedim(-1, 1).to(logits.dtype)
        each = F.binary_cross_entropy_with_logits(logits, labels, reduction="none")
        loss = self._per_node((each * (1 - below)).sum(1))
        if self.leaf:
            right = self.leaves.under[sure].movedim(-1, 1) > 0
            loss = loss + self.leaf * one_of(self.leaves.scores(logits), right)
        return loss

    def _along_tree(self, logits: Float[Tensor, "b n ..."], target: Target) -> Float[Tensor, "b ..."]:
        """The cross entropy of the leaf, or of the leaves under the sure concept, whichever it is: minus the log of how
        likely each concept on the path is among its siblings, down to there.
        """
        assert target.leaf is not None
        self._move(logits.device)
        shares = self.leaves.shares(logits, target.leaf)
        if target.sure is not None:
            shares = shares * self.leaves.reached[target.sure.long()].movedim(-1, 1)
        return -shares.sum(1)

    def _per_node(self, summed: Tensor) -> Tensor:
        return summed if self.reduction == "sum" else summed / self.nodes

    @torch.no_grad()
    def _points(self, logits: Tensor, plan: Planned) -> Int64[Tensor, "b points"]:
        count = int(self.config.points or 0)
        turn = Keyed.of_views(plan["seeds"], logits[0, 0].shape).numbers(1).view(len(logits), -1)
        order = turn.argsort(dim=1, stable=True)
        if self.config.points_by == "random":
            return order[:, :count]
        unsure = int(UNCERTAIN * count)
        offered = order[:, : OVERSAMPLED * count]
        least_sure = offered.gather(1, certainty(at_points(logits, offered), self.head).argsort(1)[:, :unsure])
        left = turn.scatter(1, least_sure, -1).argsort(dim=1, stable=True)  # the least sure come first
        return torch.cat([least_sure, left[:, left.shape[1] - count + unsure :]], 1)


def path_table(h: Hierarchy) -> Int64[Tensor, "leaves depth"]:
    """The channels of each leaf's path, itself included; short paths are filled up with -1."""
    paths = [list(h.path_indices(leaf)) for leaf in h.leaf_indices]
    depth = max(map(len, paths))
    return torch.tensor([path + [-1] * (depth - len(path)) for path in paths])


def path_bce(
    logits: Float[Tensor, "b n ..."], leaf: Int64[Tensor, "b ..."], paths: Int64[Tensor, "leaves depth"]
) -> Float[Tensor, "b ..."]:
    """Binary cross entropy of all nodes, summed, against the path to a leaf; no target per node is ever made.

    The loss of a node is softplus(z), less z where the node is on the path.
    """
    loss = F.softplus(logits).sum(1)
    for channel in paths.T:
        on_path = channel[leaf]
        taken = logits.gather(1, on_path.clamp(min=0)[:, None])[:, 0]
        loss = loss - taken * (on_path >= 0)
    return loss


def one_of(scores: Float[Tensor, "b leaf ..."], right: Bool[Tensor, "b leaf ..."]) -> Float[Tensor, "b ..."]:
    """The cross entropy where any of several leaves is right: minus the log of their probabilities' sum."""
    return scores.logsumexp(1) - scores.masked_fill(~right, -torch.inf).logsumexp(1)


def certainty(logits: Float[Tensor, "b c ..."], head: str) -> Float[Tensor, "b ..."]:
    """How sure a prediction is: how far the nearest output is from even, or the best leaf from the second."""
    if head == "hierarchical":
        return logits.abs().amin(1)
    if logits.shape[1] == 1:
        return torch.zeros_like(logits[:, 0])
    best = logits.topk(2, dim=1).values
    return best[:, 0] - best[:, 1]
