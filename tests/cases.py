"""Random trees, formulas and knowledge bases; and an oracle that shares no code with the library."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable

from pysat.solvers import Solver

from logicdiag import Hierarchy, KnowledgeBase
from logicdiag.kernels import reference
from logicdiag.logic.formula import Algebra, And, Atom, Forall, Formula, Iff, Implies, Not, Or, Rule, atoms, interpret

PLAIN = Algebra(
    negate=lambda a: not a,
    conjoin=lambda a, b: a and b,
    disjoin=lambda a, b: a or b,
    imply=lambda a, b: (not a) or b,
    equal=lambda a, b: a == b,
)
FAMILIES = ["".join(c) for k in range(4) for c in itertools.combinations("CDE", k)]


def random_hierarchy(rng: random.Random, most: int, least: int = 1) -> Hierarchy:
    """Depth-first parents: each next node hangs below the last one or one of its ancestors."""
    parents: list[int] = []
    for node in range(rng.randint(least, most)):
        options = [-1]
        while node and len(options) < 8:
            last = node - 1 if len(options) == 1 else parents[options[-1]]
            if last == -1:
                break
            options.append(last)
        parents.append(rng.choice(options))
    return Hierarchy(tuple(f"n{i}" for i in range(len(parents))), tuple(parents), "random")


def random_formula(rng: random.Random, names: tuple[str, ...], depth: int) -> Formula:
    if depth == 0 or rng.random() < 0.3:
        return Atom(rng.choice(names))
    kind = rng.choice([Not, And, Or, Implies, Iff])
    if kind is Not:
        return Not(random_formula(rng, names, depth - 1))
    return kind(random_formula(rng, names, depth - 1), random_formula(rng, names, depth - 1))


def random_knowledge(rng: random.Random, most: int = 9, rules: int = 3, families: str | None = None) -> KnowledgeBase:
    h = random_hierarchy(rng, most)
    bodies = [random_formula(rng, h.names, rng.randint(1, 3)) for _ in range(rng.choice([0, 0, *range(rules + 1)]))]
    return KnowledgeBase(
        h,
        rng.choice(FAMILIES) if families is None else families,
        [Rule(f"r{i}", Forall("x", body)) for i, body in enumerate(bodies)],
        rng.choice(["asserted", "free"]),
    )


def predicates(kb: KnowledgeBase) -> list[Callable[[reference.Label], bool]]:
    index = {name: i for i, name in enumerate(kb.hierarchy.names)}
    return [
        lambda label, body=rule.body: bool(interpret(body, lambda name: label[index[name]], PLAIN)) for rule in kb.rules
    ]


def all_models(kb: KnowledgeBase) -> list[reference.Label]:
    """By trying all labels."""
    rules = predicates(kb)
    return reference.models(
        len(kb.hierarchy),
        lambda label: reference.is_consistent(label, kb.hierarchy.parents, kb.families, kb.root_holds, rules),
    )


class Oracle:
    """Minimal diagnoses by a SAT solver: families clause by clause, user rules by their truth tables."""

    def __init__(self, kb: KnowledgeBase) -> None:
        self.n = len(kb.hierarchy)
        self.clauses = list(self._families(kb))
        for rule in kb.rules:
            names = atoms(rule.body)
            for values in itertools.product((False, True), repeat=len(names)):
                if not interpret(rule.body, dict(zip(names, values, strict=True)).__getitem__, PLAIN):
                    variables = [kb.hierarchy.index(name) + 1 for name in names]
                    self.clauses.append([-v if value else v for v, value in zip(variables, values, strict=True)])

    @staticmethod
    def _families(kb: KnowledgeBase) -> Iterable[list[int]]:
        parents = kb.hierarchy.parents
        for node, parent in enumerate(parents):
            kids = [k + 1 for k, p in enumerate(parents) if p == node]
            if "C" in kb.families and parent >= 0:
                yield [-(node + 1), parent + 1]
            if "D" in kb.families and kids:
                yield [-(node + 1), *kids]
            if "E" in kb.families:
                for other in range(node):
                    if parents[other] == parent:
                        yield [-(node + 1), -(other + 1)]
        if "D" in kb.families and kb.root == "asserted":
            yield [k + 1 for k, p in enumerate(parents) if p == -1]

    def satisfiable(self) -> bool:
        with Solver(name="g4", bootstrap_with=self.clauses) as solver:
            return bool(solver.solve())

    def minimal_diagnoses(self, observed: tuple[bool, ...]) -> set[frozenset[int]]:
        literals = [i + 1 if value else -(i + 1) for i, value in enumerate(observed)]
        found: set[frozenset[int]] = set()
        with Solver(name="g4", bootstrap_with=[*self.clauses, [self.n + 1, -(self.n + 1)]]) as solver:
            while solver.solve():
                flips = [lit for lit in literals if lit not in set(solver.get_model())]
                kept = [lit for lit in literals if lit not in flips]
                for lit in list(flips):
                    if solver.solve(assumptions=[*kept, lit]):
                        kept.append(lit)
                        flips.remove(lit)
                found.add(frozenset(abs(lit) - 1 for lit in flips))
                solver.add_clause(flips)
        return found
