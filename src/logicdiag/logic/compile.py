"""KnowledgeBase -> a compiled program, once; applied to any number of pixels afterwards.

C, D and E together      paths      one sweep up and down the tree, user rules included
any other families       automaton  a few states per node, one per independent component
tangled user rules       search     exact search per pattern, where an automaton would grow too large
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..errors import ContradictionError, LogicDiagError, TangledRulesWarning
from ..kernels import automaton as automata
from ..kernels import paths
from ..kernels.layout import ROOT, Layout
from ..kernels.paths import PathProgram
from ..kernels.schedule import Automaton
from ..kernels.taken import FORBIDDEN, Chance, Keyed, Taken
from .automaton import TooLarge, build, side_by_side
from .enumerate import Weighted, count, enumerate_diagnoses, likeliest
from .formula import Formula, atoms
from .knowledge import KnowledgeBase
from .search import Search

MOST_LISTED = 5_000_000
"""Without a budget, more minimal diagnoses of one observation than this are not listed."""
WORK = 1_000_000
"""Units of work after which an automaton is given up for a search."""


@dataclass(frozen=True)
class Program:
    """A knowledge base made ready: independent parts, each a way to diagnose some of the rows."""

    layout: Layout
    parts: tuple[PathProgram | Automaton | Search, ...]

    def floats_per_pixel(self, device: torch.device) -> int:
        """About how many numbers a pixel occupies while it is worked on there."""
        n = len(self.layout.order)
        if automata.in_tiles(device):
            return 14 * n
        held = [part.schedule.height for part in self.parts if isinstance(part, Automaton)]
        return 14 * n + 2 * max(held, default=0)

    def diagnose(
        self,
        observed: Bool[Tensor, "n pixels"],
        flip: Float[Tensor, "n pixels"],
        choice: str,
        generator: Chance = None,
        expected: bool = False,
        budget: int = 1024,
    ) -> Taken:
        """One minimal diagnosis per pixel, over all parts: flips add up, and so do log probabilities."""
        if len(self.parts) == 1 and isinstance(self.parts[0], PathProgram):
            return paths.diagnose(self.parts[0], observed, flip, choice, generator, expected)
        whole = Taken(
            observed.clone(),
            flip.new_zeros(flip.shape[1]),
            observed.to(flip.dtype) if expected else None,
            None,
        )
        for number, part in enumerate(self.parts):
            chance = generator.stream(number) if isinstance(generator, Keyed) else generator
            if isinstance(part, Automaton):
                taken = automata.diagnose(part, observed, flip, choice, chance, expected)
            else:
                assert isinstance(part, Search)
                taken = part.diagnose(observed, flip, choice, chance, expected, budget)
            rows = list(part.rows)
            whole.revised[rows] = taken.revised[rows]
            whole.log_prob += taken.log_prob
            if whole.expected is not None and taken.expected is not None:
                whole.expected[rows] = taken.expected[rows]
            if taken.exhaustive is not None:
                whole.exhaustive = taken.exhaustive if whole.exhaustive is None else whole.exhaustive & taken.exhaustive
        return whole

    def enumerate(
        self, observed: Sequence[bool], flip: Sequence[float], budget: int | None
    ) -> tuple[list[Weighted], int | None]:
        """The minimal diagnoses of one observation, likeliest first, and how many there are; None: more than these.

        The budget bounds work, so there may be more than that where listing all of them is as quick.
        """
        parts: list[list[Weighted]] = []
        total, known = 1, True
        for part in self.parts:
            if isinstance(part, Search):
                found, whole = part.enumerate(observed, flip, budget)
                total *= len(found)
                known &= whole
                parts.append(found)
            elif isinstance(part, PathProgram):
                parts.append(_paths(part, observed, flip))
                total *= len(parts[-1])
            else:
                total *= count(part, observed)
        if budget is None and total > MOST_LISTED:
            raise LogicDiagError(f"this observation has {total} minimal diagnoses; pass budget=N for the N likeliest")
        if len(self.parts) == 1 and isinstance(self.parts[0], PathProgram):
            return parts[0], total
        parts += [enumerate_diagnoses(p, observed, flip, budget) for p in self.parts if isinstance(p, Automaton)]
        together: list[Weighted] = [(0.0, 0)]
        for found in parts:
            together = likeliest([(together, found)], budget)
        return together, total if known else None


def compile_knowledge(kb: KnowledgeBase, work: int = WORK) -> Program:
    """The program of a knowledge base; a contradiction is an error that names a smallest set of rules."""
    h = kb.hierarchy
    layout = Layout.of(h.parents)
    if kb.families == "CDE":
        labels = torch.zeros(len(h.leaves) + 1, len(h), dtype=torch.bool)
        for number, leaf in enumerate(h.leaf_indices):
            labels[number, list(h.path_indices(leaf))] = True
        *allowed, nothing = kb.is_consistent(labels).tolist()
        if not any(allowed) and not nothing:
            raise _contradiction(kb)
        return Program(layout, (PathProgram(layout, tuple(allowed), nothing),))
    searched: list[Search] = []
    swept: list[Automaton] = []
    for nodes, bodies in _components(kb):
        try:
            swept.append(build(kb, nodes, bodies, layout.row_of, work))
        except TooLarge:
            warnings.warn(
                f"{len(bodies)} user rules tie {len(nodes)} classes together too tightly for a sweep; "
                "pixels in conflict are searched pattern by pattern, which is slow; see result.exhaustive",
                TangledRulesWarning,
                stacklevel=3,
            )
            searched.append(Search.over(kb, nodes, bodies, layout))
    if not all(part.steps for part in swept) or any(part.is_contradiction() for part in searched):
        raise _contradiction(kb)
    return Program(layout, (*([side_by_side(swept)] if swept else []), *searched))


def _components(kb: KnowledgeBase) -> Iterator[tuple[list[int], list[Formula]]]:
    """Nodes that no rule connects with others, and the rules that speak of them; free nodes are left out."""
    parent_of = list(range(len(kb.hierarchy)))

    def find(node: int) -> int:
        while parent_of[node] != node:
            parent_of[node] = parent_of[parent_of[node]]
            node = parent_of[node]
        return node

    bodies = [(rule.body, [kb.hierarchy.index(name) for name in atoms(rule.body)]) for rule in kb.rules if rule.body]
    linked: list[tuple[int, ...]] = [tuple(nodes) for _, nodes in bodies]
    bound = {node for nodes in linked for node in nodes}
    for parent, kids in kb.groups:
        if parent != ROOT and ("C" in kb.families or "D" in kb.families):
            linked.append((parent, *kids))
        elif ("E" in kb.families and len(kids) > 1) or (parent == ROOT and kb.root_holds):
            linked.append(kids)
    for nodes in linked:
        bound.update(nodes)
        for node in nodes[1:]:
            parent_of[find(node)] = find(nodes[0])
    members: dict[int, list[int]] = {}
    for node in sorted(bound):
        members.setdefault(find(node), []).append(node)
    for top, group in members.items():
        yield group, [body for body, nodes in bodies if find(nodes[0]) == top]


def _paths(program: PathProgram, observed: Sequence[bool], flip: Sequence[float]) -> list[Weighted]:
    column = torch.tensor(list(observed))[:, None]
    weights = paths.log_weights(program, column, torch.tensor(list(flip), dtype=torch.float64)[:, None])[:, 0].tolist()
    was = sum(1 << row for row, value in enumerate(observed) if value)
    found = []
    for candidate, weight in enumerate(weights):
        if weight > -FORBIDDEN / 2:
            mask, row = 0, program.layout.leaf_rows[candidate] if candidate < len(program.allowed) else ROOT
            while row != ROOT:
                mask |= 1 << row
                row = program.layout.parents[row]
            flips = was ^ mask
            found.append((sum(f for r, f in enumerate(flip) if flips >> r & 1), flips))
    return likeliest([(found, [(0.0, 0)])], None)


def _contradiction(kb: KnowledgeBase) -> ContradictionError:
    from .lint import smallest_contradiction

    return ContradictionError(smallest_contradiction(kb) or ())
