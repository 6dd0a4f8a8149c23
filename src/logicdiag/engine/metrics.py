"""One confusion matrix over the whole data set, and every number that follows from it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.distributed
from jaxtyping import Bool, Float, Float64, Int64, Integer
from torch import Tensor

from ..errors import DataError
from ..kernels.layout import ROOT
from ..logic.hierarchy import Hierarchy
from ..logic.knowledge import KnowledgeBase

IGNORED = 255
"""In masks; in views it is -1. Neither is counted."""


@dataclass(frozen=True)
class Severity:
    """How far off the wrong pixels are: the height of the lowest common ancestor of what is and what was said.

    1 is a confusion of siblings that are leaves, `hierarchy.height` one that only the virtual Root unites. `mean` is
    NaN where no pixel is wrong; `shares[height]` is the share of the wrong pixels.
    """

    mean: float
    shares: dict[int, float]


class Confusion:
    """Pixel counts, truth by prediction, at the leaves; the other levels are sums over it.

    >>> h = Hierarchy.from_dict({"animal": ["bird", "cat"], "sky": None})
    >>> confusion = Confusion(h)
    >>> confusion.add(torch.tensor([0, 0, 2, 2]), torch.tensor([0, 1, 2, 255]))
    >>> confusion.counts.tolist()
    [[1, 0, 0], [1, 0, 0], [0, 0, 1]]
    >>> confusion.miou(level=1), confusion.miou(level=2), confusion.accuracy()
    (1.0, 0.5, 0.6666666666666666)

    Levels count from 1 at the top to `hierarchy.height`, the leaves. At a level the prediction is the ancestor of the
    chosen leaf, and a shallow leaf stands for itself.
    """

    def __init__(self, hierarchy: Hierarchy, device: torch.device | str = "cpu") -> None:
        self.hierarchy = hierarchy
        leaves = len(hierarchy.leaves)
        self.counts = torch.zeros(leaves, leaves, dtype=torch.int64, device=device)

    def add(self, prediction: Integer[Tensor, "*shape"], truth: Integer[Tensor, "*shape"]) -> None:
        """Count pixels; both are indices into `hierarchy.leaves`, and truth -1 or 255 is not counted."""
        if prediction.shape != truth.shape:
            raise DataError(f"the prediction has shape {tuple(prediction.shape)}, the mask {tuple(truth.shape)}")
        n = len(self.counts)
        truth = truth.to(self.counts.device).long().flatten()
        prediction = prediction.to(self.counts.device).long().flatten()
        counted = (truth >= 0) & (truth != IGNORED)
        wrong = counted & ((truth >= n) | (prediction < 0) | (prediction >= n))
        if bool(wrong.any()):
            pair = (int(truth[wrong][0]), int(prediction[wrong][0]))
            raise DataError(f"a pixel has class {pair[0]} in the mask and {pair[1]} predicted; there are {n} leaves")
        cells = torch.where(counted, truth * n + prediction, n * n)  # the last cell takes what is not counted
        self.counts += torch.bincount(cells, minlength=n * n + 1)[:-1].view(n, n)

    def reduce(self) -> None:
        """Sum over all ranks, in place; nothing to do in a single process."""
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.all_reduce(self.counts)

    @property
    def pixels(self) -> int:
        return int(self.counts.sum())

    def at_level(self, level: int) -> Int64[Tensor, "k k"]:
        """The confusion matrix among `hierarchy.levels[level - 1]`."""
        member = level_of_leaves(self.hierarchy, level).to(self.counts.device)
        k = len(self.hierarchy.levels[level - 1])
        rows = self.counts.new_zeros(k, len(self.counts)).index_add_(0, member, self.counts)
        return self.counts.new_zeros(k, k).index_add_(1, member, rows)

    def iou(self, level: int | None = None) -> Float64[Tensor, " k"]:
        """Per class of a level (default: the leaves), |truth ∩ prediction| / |truth ∪ prediction|.

        A class that was only ever predicted has 0; one that neither occurs nor was predicted has NaN.
        """
        counts = self.at_level(self.hierarchy.height if level is None else level).cpu()
        both = counts.diagonal()
        return both.double() / (counts.sum(0) + counts.sum(1) - both)

    def miou(self, level: int | None = None) -> float:
        """The mean of `iou` over the classes that are not NaN; NaN where no pixel was counted."""
        return float(self.iou(level).nanmean())

    def accuracy(self) -> float:
        """The share of pixels whose leaf is right; NaN where no pixel was counted."""
        return _share(int(self.counts.diagonal().sum()), self.pixels)

    def severity(self) -> Severity:
        heights = common_ancestor_heights(self.hierarchy)
        by_height = torch.zeros(self.hierarchy.height + 1, dtype=torch.int64)
        by_height.index_add_(0, heights.flatten(), self.counts.cpu().flatten())
        wrong = by_height[1:].tolist()
        total = sum(wrong)
        return Severity(
            _share(sum(height * count for height, count in enumerate(wrong, 1)), total),
            {height: _share(count, total) for height, count in enumerate(wrong, 1) if total},
        )


class Violations:
    """The share of pixels whose binarised outputs (p > 0.5) break the rules, before any repair.

    >>> h = Hierarchy.from_dict({"animal": ["bird", "cat"], "sky": None})
    >>> violations = Violations(KnowledgeBase(h))
    >>> bird_without_animal, sky = [0.2, 0.9, 0.1, 0.1], [0.1, 0.1, 0.1, 0.9]
    >>> violations.add(torch.tensor([bird_without_animal, sky]), torch.tensor([True, True]))
    >>> violations.share(), violations.by_rule()
    (0.5, {'C': 0.5, 'D': 0.5, 'E': 0.0})

    A pixel that breaks several families counts once in `share`, and once in each of them. User rules that speak of one
    pixel have an entry each, by name.
    """

    def __init__(self, knowledge: KnowledgeBase, device: torch.device | str = "cpu") -> None:
        h = knowledge.hierarchy
        self._parts = {family: KnowledgeBase(h, family, root=knowledge.root) for family in knowledge.families}
        self._parts |= {rule.name: KnowledgeBase(h, "", [rule]) for rule in knowledge.pixel_rules}
        self.counts = torch.zeros(2 + len(self._parts), dtype=torch.int64, device=device)
        """Pixels, pixels that break some rule, and those that break each part."""

    def add(self, probs: Float[Tensor, "b n ..."], valid: Bool[Tensor, "b ..."]) -> None:
        """`probs` has one channel per concept, in the order of `hierarchy.names`."""
        labels = (probs > 0.5).movedim(1, -1)
        broken = [valid & ~part.is_consistent(labels) for part in self._parts.values()]
        some = torch.stack(broken).any(0) if broken else torch.zeros_like(valid)
        self.counts += torch.stack([mask.sum() for mask in (valid, some, *broken)]).to(self.counts.device)

    def reduce(self) -> None:
        """Sum over all ranks, in place; nothing to do in a single process."""
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.all_reduce(self.counts)

    def share(self) -> float:
        pixels, broken, *_ = self.counts.tolist()
        return _share(broken, pixels)

    def by_rule(self) -> dict[str, float]:
        pixels, _, *parts = self.counts.tolist()
        return {name: _share(count, pixels) for name, count in zip(self._parts, parts, strict=True)}


def level_of_leaves(h: Hierarchy, level: int) -> Int64[Tensor, " leaves"]:
    """For each leaf, the place in `h.levels[level - 1]` of its ancestor there, or of itself where it is shallower."""
    place = {name: i for i, name in enumerate(h.levels[level - 1])}
    paths = [h.path_indices(leaf) for leaf in h.leaf_indices]
    return torch.tensor([place[h.names[path[min(level, len(path)) - 1]]] for path in paths])


def common_ancestor_heights(h: Hierarchy) -> Int64[Tensor, "leaves leaves"]:
    """The height of the lowest common ancestor of two leaves: its longest way down to a leaf, 0 for a leaf itself.

    The virtual Root has height `h.height`.
    """
    heights = [0] * len(h)
    for node in reversed(range(len(h))):  # children stand after their parents
        if h.parents[node] != ROOT:
            heights[h.parents[node]] = max(heights[h.parents[node]], heights[node] + 1)
    paths = [h.path_indices(leaf) for leaf in h.leaf_indices]
    table = torch.full((len(paths), len(paths)), h.height)
    for i, first in enumerate(paths):
        for j, second in enumerate(paths):
            shared = [a for a, b in zip(first, second, strict=False) if a == b]
            if shared:
                table[i, j] = heights[shared[-1]]
    return table


def _share(part: int, whole: int) -> float:
    return part / whole if whole else math.nan
