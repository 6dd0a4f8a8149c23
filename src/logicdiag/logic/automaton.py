"""Compiles rules over a tree into a bottom-up automaton whose accepted runs are exactly the minimal diagnoses.

Read a diagnosis from the leaves up. What the rest of the tree can see of a finished part is its *signature*: the
value of its topmost node (or, for a half-read sibling group, whether some sibling is true) and, of each user rule
that is not decided yet, the values it has met. A diagnosis is not minimal when another label, between it and what was
observed, satisfies the rules as well. So a state is

    (signature, signatures that a label closer to the observation could show here)

and a partial diagnosis is dropped the moment such an alternative shows its own signature: replacing it would go
unnoticed above. `docs/semantics.md` proves that what is left at the end are the minimal diagnoses, each reached once.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import reduce

from ..kernels.layout import ROOT
from ..kernels.schedule import FLIP_FALSE, FLIP_TRUE, KEEP_FALSE, KEEP_TRUE, Automaton, Join, Observe, Root
from .formula import Formula, atoms, restrict
from .knowledge import KnowledgeBase

Met = frozenset[tuple[str, bool]]
"""The values that an undecided rule has met."""
Signature = tuple[bool | None, tuple[tuple[int, Met | None], ...]]
"""(value of the topmost node or of "some sibling", per undecided rule what it met; None for a rule already
satisfied).
"""
State = tuple[Signature, frozenset[Signature]]
Combine = Callable[[bool | None, bool | None], tuple[bool, bool | None]]
"""Two values -> (do they satisfy the families, the value seen from above)."""


class TooLarge(Exception):
    """The automaton would cost more per pixel than it is worth."""


@dataclass
class _Part:
    """A finished part of the tree: the step that computes it, its states, and the concepts it covers."""

    step: int
    states: list[State]
    covers: frozenset[str]


@dataclass
class _Builder:
    kb: KnowledgeBase
    bodies: list[Formula]
    row_of: tuple[int, ...]
    limit: int
    steps: list[Root | Observe | Join] = field(default_factory=list)
    size: int = 0
    known: dict[tuple[int, frozenset[str], object], Met] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rules_of: dict[str, list[int]] = {}
        self.spoken = [frozenset(atoms(body)) for body in self.bodies]
        for number, names in enumerate(self.spoken):
            for name in names:
                self.rules_of.setdefault(name, []).append(number)

    def root(self) -> _Part:
        """The virtual Root: always true, seen by nobody."""
        self._grow(Root(), 1)
        return _Part(len(self.steps) - 1, [((None, ()), frozenset())], frozenset())

    def observe(self, node: int, seen: bool) -> _Part:
        """The four ways of one node; `seen` says whether its value matters to its parent or siblings."""
        name = self.kb.hierarchy.names[node]
        signature = {value: self._leaf(name, value, seen) for value in (False, True)}
        states: dict[State, int] = {}
        state_of: list[int | None] = [None] * 4
        for kind, was, now in (
            (KEEP_FALSE, False, False),
            (FLIP_FALSE, False, True),
            (KEEP_TRUE, True, True),
            (FLIP_TRUE, True, False),
        ):
            own, observed = signature[now], signature[was]
            closer = frozenset() if was == now or observed is None else frozenset({observed})
            if own is not None and own not in closer:
                state_of[kind] = states.setdefault((own, closer), len(states))
        self._grow(Observe(self.row_of[node], tuple(state_of)), len(states))  # type: ignore[arg-type]
        return _Part(len(self.steps) - 1, list(states), frozenset({name}))

    def _leaf(self, name: str, value: bool, seen: bool) -> Signature | None:
        met = {rule: frozenset({(name, value)}) for rule in self.rules_of.get(name, [])}
        pending = self._settle(met, frozenset({name}))
        return None if pending is None else (value if seen else None, pending)

    def join(self, first: _Part, second: _Part, combine: Combine) -> _Part:
        covers = first.covers | second.covers
        memo: dict[tuple[Signature, Signature], Signature | None] = {}

        def combined(a: Signature, b: Signature) -> Signature | None:
            if (a, b) not in memo:
                memo[a, b] = self._combine(a, b, combine, covers)
            return memo[a, b]

        ways: dict[State, list[tuple[int, int]]] = {}
        for i, (own_a, others_a) in enumerate(first.states):
            for j, (own_b, others_b) in enumerate(second.states):
                own = combined(own_a, own_b)
                if own is None:
                    continue
                self.size += (1 + len(others_a)) * (1 + len(others_b))
                if self.size > self.limit:
                    raise TooLarge
                closer = {combined(a, own_b) for a in others_a}
                closer.update(combined(a, b) for a in (own_a, *others_a) for b in others_b)
                closer.discard(None)
                if own not in closer:
                    ways.setdefault((own, frozenset(closer)), []).append((i, j))  # type: ignore[arg-type]
        pairs = [(i, j, target) for target, found in enumerate(ways.values()) for i, j in found]
        left, right, target = zip(*pairs, strict=True) if pairs else ((), (), ())
        self._grow(Join(first.step, second.step, left, right, target), len(pairs))
        return _Part(len(self.steps) - 1, list(ways), covers)

    def joined(self, parts: list[_Part], combine: Combine) -> _Part:
        """All parts, the two smallest first each time: a shallow tree, and few joins carry undecided rules."""
        heap = [(len(part.states), part.step, part) for part in parts]
        heapq.heapify(heap)
        while len(heap) > 1:
            one, other = heapq.heappop(heap)[2], heapq.heappop(heap)[2]
            part = self.join(one, other, combine)
            heapq.heappush(heap, (len(part.states), part.step, part))
        return heap[0][2]

    def _combine(self, a: Signature, b: Signature, combine: Combine, covers: frozenset[str]) -> Signature | None:
        fits, value = combine(a[0], b[0])
        if not fits:
            return None
        met = dict(a[1])
        for rule, values in b[1]:
            mine = met.get(rule, frozenset())
            met[rule] = None if mine is None or values is None else mine | values
        pending = self._settle(met, covers)
        return None if pending is None else (value, pending)

    def _settle(
        self, met: dict[int, Met | None] | dict[int, Met], covers: frozenset[str]
    ) -> tuple[tuple[int, Met | None], ...] | None:
        """Drop rules whose every concept is covered, None if one is broken; equal remainders get one spelling."""
        pending: list[tuple[int, Met | None]] = []
        for rule, values in sorted(met.items()):
            if values is not None:
                rest = restrict(self.bodies[rule], dict(values))
                if rest is False:
                    return None
                if rest is True:
                    values = None
                else:
                    values = self.known.setdefault((rule, self.spoken[rule] & covers, rest), values)
            if not self.spoken[rule] <= covers:
                pending.append((rule, values))
        return tuple(pending)

    def _grow(self, step: Root | Observe | Join, cost: int) -> None:
        self.steps.append(step)
        self.size += cost
        if self.size > self.limit:
            raise TooLarge


def build(
    kb: KnowledgeBase, nodes: Iterable[int], bodies: list[Formula], row_of: tuple[int, ...], limit: int
) -> Automaton:
    """The automaton of one independent component: some nodes, and the per-pixel rules that speak of them.

    Raises `TooLarge` past `limit` units of work; returns an automaton without steps if no label satisfies the rules.
    """
    h, members = kb.hierarchy, frozenset(nodes)
    builder = _Builder(kb, bodies, row_of, limit)
    composes, decomposes, excludes = ("C" in kb.families, "D" in kb.families, "E" in kb.families)

    def siblings(a: bool | None, b: bool | None) -> tuple[bool, bool | None]:
        return not (excludes and a and b), None if a is None else bool(a or b)

    def seen(node: int) -> bool:
        """Whether the rest of the tree can tell this node's value, once its children are read."""
        parent = h.parents[node]
        if parent == ROOT:
            return kb.root_holds or (excludes and len(h.top_indices) > 1)
        return composes or decomposes or (excludes and len(h.child_indices[parent]) > 1)

    def under(node: int) -> Combine:
        def combine(own: bool | None, some: bool | None) -> tuple[bool, bool | None]:
            broken = (composes and some and not own) or (decomposes and own and not some)
            return not broken, own if seen(node) else None

        return combine

    done: dict[int, _Part] = {}
    loose: list[_Part] = []
    for parent in range(len(h) - 1, ROOT - 1, -1):  # children stand after their parents
        kids = [done.pop(kid) for kid in h.group(parent) if kid in done]
        group = builder.joined(kids, siblings) if kids else None
        if parent in members:
            linked = group is not None and (composes or decomposes)
            own = builder.observe(parent, seen(parent) or linked)
            if group is not None:
                own = builder.join(own, group, under(parent) if linked else _apart)
            done[parent] = own
        elif group is not None:
            if parent == ROOT and kb.root_holds:
                group = builder.join(builder.root(), group, lambda _, some: (bool(some), None))
            loose.append(group)
    whole = reduce(lambda one, other: builder.join(one, other, _apart), loose, builder.root())
    return _trimmed(builder.steps) if whole.states else Automaton(())


def side_by_side(automata: list[Automaton]) -> Automaton:
    """One automaton of several that nothing connects: they do not wait for each other, so they share their waves."""
    steps: list[Root | Observe | Join] = []
    last: list[int] = []
    for automaton in automata:
        start = len(steps)
        for step in automaton.steps:
            if isinstance(step, Join):
                step = Join(step.first + start, step.second + start, step.left, step.right, step.target)
            steps.append(step)
        last.append(len(steps) - 1)
    while len(last) > 1:
        first, second, *rest = last
        steps.append(Join(first, second, (0,), (0,), (0,)))
        last = [*rest, len(steps) - 1]
    return Automaton(tuple(steps))


def _apart(own: bool | None, _: bool | None) -> tuple[bool, bool | None]:
    return True, own


def _trimmed(steps: list[Root | Observe | Join]) -> Automaton:
    """Without the states that no accepted run passes through."""
    useful: list[set[int]] = [set() for _ in steps]
    useful[-1] = {0}
    for number in range(len(steps) - 1, -1, -1):
        step = steps[number]
        if isinstance(step, Join):
            for left, right, target in zip(step.left, step.right, step.target, strict=True):
                if target in useful[number]:
                    useful[step.first].add(left)
                    useful[step.second].add(right)
    renamed = [{old: new for new, old in enumerate(sorted(kept))} for kept in useful]
    trimmed: list[Root | Observe | Join] = []
    for step, names in zip(steps, renamed, strict=True):
        if isinstance(step, Observe):
            step = Observe(step.row, tuple(None if s is None else names.get(s) for s in step.state_of))  # type: ignore[arg-type]
        elif isinstance(step, Join):
            pairs = [
                (renamed[step.first][left], renamed[step.second][right], names[target])
                for left, right, target in zip(step.left, step.right, step.target, strict=True)
                if target in names
            ]
            left_states, right_states, targets = zip(*pairs, strict=True)
            step = Join(step.first, step.second, left_states, right_states, targets)
        trimmed.append(step)
    return Automaton(tuple(trimmed))
