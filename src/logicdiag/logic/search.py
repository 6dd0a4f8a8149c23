"""Exact search for minimal diagnoses, for rules too tangled for an automaton.

Where a clause is broken, some variable in it must flip; branching on which one reaches every minimal diagnosis once. A
pattern with at most `budget` minimal diagnoses is listed whole and remembered. One with more is searched best-first for
each pixel, with that pixel's own weights, and its result is marked as not exhaustive.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..errors import LogicDiagError
from ..kernels.layout import Layout
from ..kernels.taken import Chance, Taken, cumulative_choice, first_largest, part_of
from .clauses import Clause, family_clauses, rule_clauses
from .enumerate import Weighted
from .formula import Formula
from .knowledge import KnowledgeBase

REMEMBERED = 65_536
"""Patterns whose diagnoses are kept."""
EXPANSIONS = 5_000
"""Nodes a search may open before it leaves the rest to the solver, or hands back what it has."""
MOST_SEARCHED = 20_000
"""Without a budget, a search refuses to list more than this."""


@dataclass(frozen=True)
class Search:
    """Clauses over some rows, each as two bit masks: rows that satisfy it when true, and when false."""

    rows: tuple[int, ...]
    clauses: tuple[tuple[int, int], ...]
    remembered: dict[tuple[int, int], list[int] | None] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def over(cls, kb: KnowledgeBase, nodes: Iterable[int], bodies: list[Formula], layout: Layout) -> Search:
        names = {kb.hierarchy.names[node]: 1 << layout.row_of[node] for node in nodes}
        clauses: set[Clause] = {clause for _, clause in family_clauses(kb) if all(name in names for name, _ in clause)}
        for body in bodies:
            clauses |= rule_clauses(str(body), body)
        masks = [
            (
                sum(names[name] for name, value in c if value),
                sum(names[name] for name, value in c if not value),
            )
            for c in clauses
        ]
        return cls(tuple(sorted(layout.row_of[node] for node in nodes)), tuple(sorted(masks)))

    # ---- one pattern ---------------------------------------------------------------------------

    def every(self, pattern: int, budget: int) -> list[int] | None:
        """All minimal diagnoses of a pattern as bit masks; None if there are more than the budget.

        Branching is fast where few labels are near; where it is not, the solver lists them one by one.
        """
        leaves: list[int] = []
        stack = [(0, 0, self._broken(pattern))]
        for _ in range(EXPANSIONS):
            flips, kept, broken = stack.pop()
            if not broken:
                leaves.append(flips)
            else:
                stack += [(f, k, b) for f, k, b, _ in self._branches(pattern, flips, kept, broken)]
            if not stack:
                break
        else:
            return self._solver.every(pattern, budget)
        minimal: list[int] = []
        for flips in sorted(leaves, key=int.bit_count):
            if not any(smaller & flips == smaller for smaller in minimal):
                minimal.append(flips)
        return None if len(minimal) > budget else minimal

    def best_first(self, pattern: int, flip: Sequence[float], budget: int) -> list[Weighted]:
        """Up to `budget` of the likeliest minimal diagnoses, likeliest first; at least one.

        The bound of an open node is the weight of what it flips and of all that would still be gained by flipping:
        nothing below it weighs more, so diagnoses come out in order.
        """
        found: list[Weighted] = []
        heap: list[tuple[float, int, int, int, list[int] | None]] = []
        heapq.heappush(heap, (-sum(max(0.0, flip[row]) for row in self.rows), 0, 0, 0, self._broken(pattern)))
        opened = 0
        while heap and len(found) < budget and opened < EXPANSIONS:
            bound, _, flips, kept, broken = heapq.heappop(heap)
            opened += 1
            if broken is None:
                if self._is_minimal(pattern, flips):
                    found.append((-bound, flips))
            elif not broken:
                weight = sum(flip[row] for row in self.rows if flips >> row & 1)
                heapq.heappush(heap, (-weight, opened, flips, kept, None))
            else:
                for more_flips, more_kept, still, row in self._branches(pattern, flips, kept, broken):
                    lost = min(0.0, flip[row]) - sum(max(0.0, flip[r]) for r in _bits(more_kept & ~kept))
                    heapq.heappush(heap, (bound - lost, opened + row, more_flips, more_kept, still))
        if not found:
            flips = self._solver.some(pattern)
            found = [(sum(flip[row] for row in self.rows if flips >> row & 1), flips)]
        return found

    def enumerate(
        self, observed: Sequence[bool], flip: Sequence[float], budget: int | None
    ) -> tuple[list[Weighted], bool]:
        """The minimal diagnoses of one observation, likeliest first, and whether they are all of them."""
        pattern = sum(1 << row for row in self.rows if observed[row])
        masks = self.every(pattern, MOST_SEARCHED if budget is None else budget)
        if masks is None:
            if budget is None:
                text = f"this observation has more than {MOST_SEARCHED} minimal diagnoses"
                raise LogicDiagError(f"{text}; pass budget=N for the N likeliest")
            return self.best_first(pattern, flip, budget), False
        weighted = [(sum(flip[row] for row in _bits(mask)), mask) for mask in masks]
        return sorted(weighted, key=lambda entry: (-entry[0], entry[1])), True

    def is_contradiction(self) -> bool:
        return not self._solver.satisfiable()

    # ---- many pixels ---------------------------------------------------------------------------

    def diagnose(
        self,
        observed: Bool[Tensor, "n pixels"],
        flip: Float[Tensor, "n pixels"],
        choice: str,
        generator: Chance,
        expected: bool,
        budget: int,
    ) -> Taken:
        """As `paths.diagnose`, for the rows of this search; other rows are left as observed."""
        rows = list(self.rows)
        revised, log_prob = observed.clone(), flip.new_zeros(flip.shape[1])
        marginal = observed.to(flip.dtype) if expected else None
        exhaustive = torch.ones(flip.shape[1], dtype=torch.bool, device=flip.device)
        patterns, owner = torch.unique(observed[rows].T, dim=0, return_inverse=True)
        for number, bits in enumerate(patterns.tolist()):
            pattern = sum(1 << row for row, bit in zip(rows, bits, strict=True) if bit)
            pixels = (owner == number).nonzero()[:, 0]
            masks = self._recall(pattern, budget)
            if masks is not None:
                self._take(masks, pixels, revised, flip, log_prob, marginal, choice, generator)
                continue
            for pixel in pixels:
                found = self.best_first(pattern, flip[:, pixel].tolist(), budget)
                exhaustive[pixel] = False
                self._take([m for _, m in found], pixel[None], revised, flip, log_prob, marginal, choice, generator)
        return Taken(revised, log_prob, marginal, exhaustive)

    def _take(
        self,
        masks: list[int],
        pixels: Tensor,
        revised: Tensor,
        flip: Tensor,
        log_prob: Tensor,
        marginal: Tensor | None,
        choice: str,
        generator: Chance,
    ) -> None:
        """Choose one of the candidate masks at each of some pixels, in place."""
        rows = torch.tensor(self.rows, device=flip.device)
        flips = torch.tensor([[mask >> row & 1 for row in self.rows] for mask in masks], device=flip.device).to(
            flip.dtype
        )
        weight = flips @ flip[rows[:, None], pixels]
        best = weight.amax(0)
        share = torch.exp(weight - best)
        total = share.sum(0)
        way = (
            cumulative_choice(share, part_of(generator, pixels)) if choice == "sample" else first_largest(weight, best)
        ).long()
        log_prob[pixels] = weight.gather(0, way[None])[0] - best - torch.log(total)
        if marginal is not None:
            before = marginal[rows[:, None], pixels]
            marginal[rows[:, None], pixels] = before + (flips.T @ (share / total)) * (1 - 2 * before)
        revised[rows[:, None], pixels] ^= flips[way].T > 0.5

    def _recall(self, pattern: int, budget: int) -> list[int] | None:
        key = (pattern, budget)
        if key not in self.remembered:
            if len(self.remembered) >= REMEMBERED:
                self.remembered.pop(next(iter(self.remembered)))
            self.remembered[key] = self.every(pattern, budget)
        return self.remembered[key]

    # ---- clauses -------------------------------------------------------------------------------

    def _broken(self, label: int) -> list[int]:
        return [i for i, (true, false) in enumerate(self.clauses) if not label & true and label & false == false]

    def _branches(
        self, pattern: int, flips: int, kept: int, broken: list[int]
    ) -> Iterable[tuple[int, int, list[int], int]]:
        """(flips, kept, clauses still broken, row flipped) for each way to mend the tightest broken clause."""
        decided = ~(flips | kept)
        choices = min(((self.clauses[i][0] | self.clauses[i][1]) & decided for i in broken), key=int.bit_count)
        for row in _bits(choices):
            more = flips | 1 << row
            label = pattern ^ more
            touched = {*broken, *self._clauses_of[row]}
            still = [
                i
                for i in touched
                if not label & self.clauses[i][0] and label & self.clauses[i][1] == self.clauses[i][1]
            ]
            yield more, kept, still, row
            kept |= 1 << row

    @cached_property
    def _clauses_of(self) -> dict[int, list[int]]:
        return {
            row: [i for i, (true, false) in enumerate(self.clauses) if (true | false) >> row & 1] for row in self.rows
        }

    @cached_property
    def _solver(self) -> _Solver:
        return _Solver(self.rows, self.clauses)

    def _is_minimal(self, pattern: int, flips: int) -> bool:
        return self._solver.smaller(pattern, flips) is None


class _Solver:
    """A SAT solver, for the questions whose answer must not depend on luck."""

    def __init__(self, rows: tuple[int, ...], clauses: Iterable[tuple[int, int]]) -> None:
        from pysat.solvers import Solver

        self.rows = rows
        self.solver: Any = Solver(name="cadical153")
        for true, false in clauses:
            self.solver.add_clause([row + 1 for row in _bits(true)] + [-(row + 1) for row in _bits(false)])
        self.switch = max(rows) + 1

    def satisfiable(self) -> bool:
        return bool(self.solver.solve())

    def smaller(self, pattern: int, flips: int) -> int | None:
        """A proper subset of the flips that satisfies the rules as well, None if there is none."""
        if not flips:
            return None
        self.switch += 1
        self.solver.add_clause([*(self._as_seen(pattern, row) for row in _bits(flips)), -self.switch])
        kept = [self._as_seen(pattern, row) for row in self.rows if not flips >> row & 1]
        found = self.solver.solve(assumptions=[*kept, self.switch])
        smaller = self._read(pattern) if found else None
        self.solver.add_clause([-self.switch])
        return smaller

    def some(self, pattern: int) -> int:
        """Any one minimal diagnosis."""
        self.solver.solve()
        return self._shrunk(pattern, self._read(pattern))

    def every(self, pattern: int, budget: int) -> list[int] | None:
        """All minimal diagnoses, each found by forbidding the supersets of those before; None past the budget."""
        self.switch += 1
        block = self.switch
        found: list[int] = []
        while self.solver.solve(assumptions=[block]):
            if len(found) == budget:
                self.solver.add_clause([-block])
                return None
            found.append(self._shrunk(pattern, self._read(pattern)))
            self.solver.add_clause([*(self._as_seen(pattern, row) for row in _bits(found[-1])), -block])
        self.solver.add_clause([-block])
        return found

    def _shrunk(self, pattern: int, flips: int) -> int:
        while (smaller := self.smaller(pattern, flips)) is not None:
            flips = smaller
        return flips

    @staticmethod
    def _as_seen(pattern: int, row: int) -> int:
        """The literal that says: this row is as observed."""
        return (row + 1) if pattern >> row & 1 else -(row + 1)

    def _read(self, pattern: int) -> int:
        true = set(self.solver.get_model())
        return sum(1 << row for row in self.rows if (row + 1 in true) != bool(pattern >> row & 1))


def _bits(mask: int) -> list[int]:
    rows = []
    while mask:
        low = mask & -mask
        rows.append(low.bit_length() - 1)
        mask ^= low
    return rows
