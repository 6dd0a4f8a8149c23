"""Every minimal diagnosis of one observation, likeliest first, from a compiled automaton.

A diagnosis is a bit mask of flipped rows, with the log of its weight. States that no complete diagnosis of this
observation passes through are left out first, so the work is proportional to what is found.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from ..kernels.schedule import Automaton, Join, Observe

Weighted = tuple[float, int]
"""(log weight, bit mask of flipped rows)"""


def count(automaton: Automaton, observed: Sequence[bool]) -> int:
    """How many minimal diagnoses an observation has, without listing them."""
    ways: list[dict[int, int]] = []
    for step in automaton.steps:
        found: dict[int, int] = {}
        if isinstance(step, Join):
            first, second = ways[step.first], ways[step.second]
            for left, right, target in zip(step.left, step.right, step.target, strict=True):
                if left in first and right in second:
                    found[target] = found.get(target, 0) + first[left] * second[right]
        elif isinstance(step, Observe):
            found = {state: 1 for state, _ in step.ways(observed[step.row])}
        else:
            found = {0: 1}
        ways.append(found)
    return ways[-1][0]


def enumerate_diagnoses(
    automaton: Automaton, observed: Sequence[bool], flip: Sequence[float], budget: int | None
) -> list[Weighted]:
    """The minimal diagnoses of one observation, or the `budget` likeliest of them; likeliest first."""
    useful = _useful(automaton, observed)
    lists: list[dict[int, list[Weighted]]] = []
    for step, states in zip(automaton.steps, useful, strict=True):
        found: dict[int, list[Weighted]] = {state: [] for state in states}
        if isinstance(step, Join):
            ways: dict[int, list[tuple[list[Weighted], list[Weighted]]]] = {state: [] for state in states}
            first, second = lists[step.first], lists[step.second]
            for left, right, target in zip(step.left, step.right, step.target, strict=True):
                if target in states and left in first and right in second:
                    ways[target].append((first[left], second[right]))
            found = {state: likeliest(pairs, budget) for state, pairs in ways.items()}
        elif isinstance(step, Observe):
            for state, flipped in step.ways(observed[step.row]):
                found[state] = [(flip[step.row], 1 << step.row) if flipped else (0.0, 0)]
        else:
            found = {0: [(0.0, 0)]}
        lists.append(found)
    return lists[-1][0]


def likeliest(pairs: list[tuple[list[Weighted], list[Weighted]]], budget: int | None) -> list[Weighted]:
    """All sums of one entry from each side of a pair, largest first, up to the budget; the lists are sorted."""
    if budget is None or sum(len(a) * len(b) for a, b in pairs) <= budget:
        every = [(wa + wb, fa | fb) for a, b in pairs for wa, fa in a for wb, fb in b]
        return sorted(every, key=_order)
    heap = [(-(a[0][0] + b[0][0]), k, 0, 0) for k, (a, b) in enumerate(pairs)]
    heapq.heapify(heap)
    best: list[Weighted] = []
    while heap and len(best) < budget:
        cost, k, i, j = heapq.heappop(heap)
        a, b = pairs[k]
        best.append((-cost, a[i][1] | b[j][1]))
        if j + 1 < len(b):
            heapq.heappush(heap, (-(a[i][0] + b[j + 1][0]), k, i, j + 1))
        if j == 0 and i + 1 < len(a):
            heapq.heappush(heap, (-(a[i + 1][0] + b[0][0]), k, i + 1, 0))
    return best


def _order(entry: Weighted) -> tuple[float, int]:
    return -entry[0], entry[1]


def _useful(automaton: Automaton, observed: Sequence[bool]) -> list[set[int]]:
    """Per step, the states on some accepted run of this observation."""
    reached: list[set[int]] = []
    for step in automaton.steps:
        if isinstance(step, Join):
            first, second = reached[step.first], reached[step.second]
            ways = zip(step.left, step.right, step.target, strict=True)
            reached.append({target for left, right, target in ways if left in first and right in second})
        elif isinstance(step, Observe):
            reached.append({state for state, _ in step.ways(observed[step.row])})
        else:
            reached.append({0})
    useful: list[set[int]] = [set() for _ in reached]
    useful[-1] = {0}
    for number in range(len(reached) - 1, -1, -1):
        step = automaton.steps[number]
        if isinstance(step, Join):
            first, second = reached[step.first], reached[step.second]
            for left, right, target in zip(step.left, step.right, step.target, strict=True):
                if target in useful[number] and left in first and right in second:
                    useful[step.first].add(left)
                    useful[step.second].add(right)
    return useful
