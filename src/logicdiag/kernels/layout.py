"""The breadth-first order of a tree, in which every sibling group is one slice of rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ROOT = -1
"""Index of the virtual Root above the top-level concepts. It has no channel and no row."""


@dataclass(frozen=True)
class Group:
    """The children of row `parent` (or of the virtual Root) are rows `start` to `stop`."""

    parent: int
    start: int
    stop: int

    @property
    def rows(self) -> slice:
        return slice(self.start, self.stop)

    @property
    def size(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class Layout:
    order: tuple[int, ...]
    """The channel that stands in each row."""
    row_of: tuple[int, ...]
    """The row in which each channel stands."""
    groups: tuple[Group, ...]
    """Parents before children; the top level first."""
    leaf_rows: tuple[int, ...]
    """Rows of the leaves, in the order of leaf indices (channel order)."""
    parents: tuple[int, ...]
    """Parent row of every row."""

    @classmethod
    def of(cls, parents: tuple[int, ...]) -> Layout:
        """From the parent channel of every channel (-1 at the top level)."""
        children: dict[int, list[int]] = {}
        for channel, parent in enumerate(parents):
            children.setdefault(parent, []).append(channel)
        order: list[int] = []
        groups: list[Group] = []
        row_of = [0] * len(parents)

        def place(parent_row: int, channels: list[int]) -> None:
            groups.append(Group(parent_row, len(order), len(order) + len(channels)))
            for channel in channels:
                row_of[channel] = len(order)
                order.append(channel)

        place(ROOT, children.get(ROOT, []))
        row = 0
        while row < len(order):
            if order[row] in children:
                place(row, children[order[row]])
            row += 1
        return cls(
            order=tuple(order),
            row_of=tuple(row_of),
            groups=tuple(groups),
            leaf_rows=tuple(row_of[c] for c in range(len(parents)) if c not in children),
            parents=tuple(ROOT if parents[c] == ROOT else row_of[parents[c]] for c in order),
        )


def leaf_intervals(parents: Sequence[int]) -> tuple[list[int], list[int]]:
    """The leaves under each channel, from the first to before the last; channels are in depth-first order.

    >>> leaf_intervals((-1, 0, 0, -1))
    ([0, 0, 1, 2], [2, 1, 2, 3])
    """
    n = len(parents)
    inner = set(parents)
    first, last = [0] * n, [0] * n
    leaves = 0
    for channel in range(n):
        first[channel] = leaves
        leaves += channel not in inner
        last[channel] = leaves
    for channel in reversed(range(n)):
        if parents[channel] != ROOT:
            last[parents[channel]] = max(last[parents[channel]], last[channel])
    return first, last


def subtree_stops(parents: Sequence[int]) -> list[int]:
    """For each channel the one after all that is below it; channels are in depth-first order.

    >>> subtree_stops((-1, 0, 0, -1))
    [3, 2, 3, 4]
    """
    stops = [channel + 1 for channel in range(len(parents))]
    for channel in reversed(range(len(parents))):
        if parents[channel] != ROOT:
            stops[parents[channel]] = max(stops[parents[channel]], stops[channel])
    return stops
