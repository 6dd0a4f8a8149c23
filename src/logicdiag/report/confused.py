"""Who is taken for whom: among superclasses, among siblings, and the worst pairs of all."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Int64
from torch import Tensor

from ..engine.metrics import common_ancestor_heights
from ..logic.hierarchy import Hierarchy

ELSEWHERE = "elsewhere"


@dataclass(frozen=True)
class Group:
    """Siblings: pixels by truth (rows) and prediction (columns); the last column is what was said outside of them."""

    parent: str | None
    """None at the top."""
    names: tuple[str, ...]
    counts: Int64[Tensor, "k columns"]

    @property
    def columns(self) -> tuple[str, ...]:
        return self.names if self.parent is None else (*self.names, ELSEWHERE)


@dataclass(frozen=True)
class Pair:
    """A truth, what it was taken for, how often, and the height of their lowest common ancestor."""

    truth: str
    said: str
    share: float
    """Of the pixels of the truth."""
    pixels: int
    height: int
    ancestor: str | None


def sibling_groups(counts: Int64[Tensor, "leaves leaves"], h: Hierarchy) -> list[Group]:
    """The top level first, then every group of at least two siblings.

    >>> h = Hierarchy.from_dict({"animal": ["bird", "cat"], "sky": None})
    >>> top, animals = sibling_groups(torch.tensor([[5, 2, 1], [0, 3, 0], [4, 0, 9]]), h)
    >>> top.counts.tolist(), animals.counts.tolist()
    ([[10, 1], [4, 9]], [[5, 2, 1], [0, 3, 0]])
    """
    groups = []
    for parent in (None, *(name for name in h.names if not h.is_leaf(name))):
        names = h.levels[0] if parent is None else h.children(parent)
        if parent is not None and len(names) < 2:
            continue
        member = torch.stack([_below(h, name) for name in names])
        inside = member.long() @ counts @ member.long().T
        if parent is not None:
            said = member.long() @ counts
            inside = torch.cat([inside, (said.sum(1) - inside.sum(1))[:, None]], 1)
        groups.append(Group(parent, names, inside))
    return groups


def worst_pairs(counts: Int64[Tensor, "leaves leaves"], h: Hierarchy, most: int = 12) -> list[Pair]:
    """By the number of pixels."""
    heights = common_ancestor_heights(h)
    wrong = counts.clone().fill_diagonal_(0)
    totals = counts.sum(1)
    found = []
    for place in wrong.flatten().argsort(descending=True, stable=True)[:most].tolist():
        truth, said = divmod(place, len(counts))
        pixels = int(wrong[truth, said])
        if pixels:
            names = h.leaves[truth], h.leaves[said]
            shared = [a for a, b in zip(h.path(names[0]), h.path(names[1]), strict=False) if a == b]
            share = pixels / int(totals[truth])
            ancestor = shared[-1] if shared else None
            found.append(Pair(*names, share, pixels, int(heights[truth, said]), ancestor))
    return found


def _below(h: Hierarchy, name: str) -> Tensor:
    """Which leaves are the concept, or below it."""
    return torch.tensor([name in h.path(leaf) for leaf in h.leaves])
