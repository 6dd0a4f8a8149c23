"""What the fused kernels read of a tree: tables, made once for each device; and Found, what they tell of pixels."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .layout import ROOT, Layout, leaf_intervals
from .paths import PathProgram

MOST_LEVELS = 8
"""Deeper trees are left to PyTorch: each level is one more loop inside of the others to compile."""
MOST_SIBLINGS = 127
MOST_POWER = 6
"""Higher powers of small errors vanish in float32; they are left to PyTorch."""
SIZES = (3, 6, 8, 10, 15, 31, 63, 127)
"""Groups are filled up to the next of these."""
FEW = 15
"""Up to so many siblings the pairs are multiplied one by one."""


@dataclass(frozen=True)
class Found:
    """Per pixel: the candidate taken, how probable it is among all minimal ones, and whether a rule was broken."""

    leaf: Tensor
    """An index into the leaves; their number stands for "no concept at all"."""
    prob: Tensor | None
    """P(omega | S), or its logarithm where that was asked for; 1 (or 0) outside of `valid`."""
    conflict: Tensor | None


@dataclass(frozen=True)
class Sweep:
    """What the kernel reads of a tree; channels are in depth-first order."""

    kids: Tensor
    """How many children each channel has."""
    first: Tensor
    last: Tensor
    """The leaves under each channel: from `first` to before `last`."""
    allowed: Tensor
    """1 for the leaves that satisfy the user's rules."""
    top: int
    levels: int
    pruned: bool
    nothing: bool

    @property
    def candidates(self) -> int:
        """Leaves, and "no concept at all" where that is a model."""
        return len(self.allowed) + self.nothing

    @classmethod
    def of(cls, program: PathProgram, device: torch.device | str) -> Sweep:
        layout = program.layout
        n = len(layout.order)
        parents = [ROOT if (up := layout.parents[layout.row_of[c]]) == ROOT else layout.order[up] for c in range(n)]
        kids = [0] * n
        for channel, parent in enumerate(parents):
            assert parent < channel
            if parent != ROOT:
                kids[parent] += 1
        first, last = leaf_intervals(parents)

        def table(values: list[int]) -> Tensor:
            return torch.tensor(values, dtype=torch.int32, device=device)

        return cls(
            table(kids),
            table(first),
            table(last),
            table([int(a) for a in program.allowed]),
            parents.count(ROOT),
            levels(layout),
            not all(program.allowed),
            program.nothing,
        )


def levels(layout: Layout) -> int:
    """How many concepts the longest path has."""
    depth = [1] * len(layout.order)
    for row, parent in enumerate(layout.parents):
        if parent != ROOT:
            depth[row] = depth[parent] + 1
    return max(depth)


@dataclass(frozen=True)
class Groups:
    """Groups of one size, each with its parent."""

    size: int
    channel: Tensor
    """(groups, size + 1): the channels of the siblings, and last of their parent. Places that are left over repeat a
    sibling: that changes no maximum, and nobody asks for their sums.
    """

    @property
    def sums(self) -> int:
        """How many sums each group has: D; then, sibling by sibling, C and E with each of those before. Large groups: D
        and the whole matrix of products, where the last column is C.
        """
        return 1 + (self.size * (self.size + 1) // 2 if self.size <= FEW else (self.size + 1) ** 2)

    def composition(self, i: int) -> int:
        return 1 + (i * (i + 1) // 2 if self.size <= FEW else i * (self.size + 1) + self.size)

    def exclusion(self, i: int, j: int) -> int:
        if self.size <= FEW:
            return 2 + max(i, j) * (max(i, j) + 1) // 2 + min(i, j)
        return 1 + i * (self.size + 1) + j


@dataclass(frozen=True)
class Gauge:
    """What the kernels read of a tree, and where among all sums each node's are."""

    groups: tuple[Groups, ...]
    composition: Tensor
    """(n,): the sum of C of a node, -1 where C says nothing of it."""
    decomposition: Tensor
    exclusion: Tensor
    """(n, most siblings): the sums of E of a node with each other sibling, then -1."""

    @property
    def sums(self) -> int:
        return sum(len(groups.channel) * groups.sums for groups in self.groups)

    @classmethod
    def of(cls, layout: Layout, device: torch.device | str) -> Gauge:
        n = len(layout.order)
        by_size: dict[int, list[tuple[list[int], int]]] = {}
        for group in layout.groups:
            members = [layout.order[row] for row in range(group.start, group.stop)]
            parent = ROOT if group.parent == ROOT else layout.order[group.parent]
            size = next(size for size in SIZES if size >= len(members))
            by_size.setdefault(size, []).append((members, parent))
        found = []
        composition, decomposition = [-1] * n, [-1] * n
        exclusion: list[list[int]] = [[] for _ in range(n)]
        start = 0
        for size, some in sorted(by_size.items()):
            rows = [
                members + [members[0]] * (size - len(members)) + [members[0] if parent == ROOT else parent]
                for members, parent in some
            ]
            groups = Groups(size, torch.tensor(rows, dtype=torch.int32, device=device))
            for members, parent in some:
                for i, member in enumerate(members):
                    exclusion[member] = [start + groups.exclusion(i, j) for j in range(len(members)) if j != i]
                    if parent != ROOT:
                        composition[member] = start + groups.composition(i)
                if parent != ROOT:
                    decomposition[parent] = start
                start += groups.sums
            found.append(groups)
        most = max(1, *map(len, exclusion))

        def table(values: list[int] | list[list[int]]) -> Tensor:
            return torch.tensor(values, dtype=torch.int32, device=device)

        padded = [sums + [-1] * (most - len(sums)) for sums in exclusion]
        return cls(tuple(found), table(composition), table(decomposition), table(padded))
