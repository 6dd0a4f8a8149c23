"""What is wrong or idle in a knowledge base: contradictions, classes that can never be true, redundant rules.

Asked of a SAT solver, with one switch per rule. `exists` rules speak of the batch as a whole and are not examined here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .clauses import Clause, family_clauses, rule_clauses
from .knowledge import KnowledgeBase


@dataclass(frozen=True)
class Finding:
    """`kind` is contradiction, never_true, redundant or truth_only; `names` the rules or the class it is about."""

    kind: str
    names: tuple[str, ...]
    message: str

    @property
    def is_error(self) -> bool:
        return self.kind == "contradiction"

    def __str__(self) -> str:
        return f"{'error' if self.is_error else 'note' if self.kind == 'truth_only' else 'warning'}: {self.message}"


class _Switched:
    """A solver in which every rule has a switch: it holds while its literal is assumed."""

    def __init__(self, kb: KnowledgeBase) -> None:
        from pysat.solvers import Solver

        self.kb = kb
        self.solver: Any = Solver(name="cadical153")
        self.variable = {name: number for number, name in enumerate(kb.hierarchy.names, 1)}
        self.switch: dict[str, int] = {}
        self.negated: dict[str, int] = {}
        self.next = len(self.variable) + 1
        for name, clause in family_clauses(kb):
            self._add(name, {clause})
        for rule in kb.pixel_rules:
            assert rule.body is not None
            self._add(rule.name, rule_clauses(rule.name, rule.body))

    def _fresh(self) -> int:
        self.next += 1
        return self.next - 1

    def _literals(self, clause: Clause) -> list[int]:
        return [self.variable[name] if value else -self.variable[name] for name, value in sorted(clause)]

    def _add(self, name: str, clauses: set[Clause]) -> None:
        self.switch[name] = self._fresh()
        for clause in clauses:
            self.solver.add_clause([*self._literals(clause), -self.switch[name]])

    def satisfiable(self, rules: list[str], *literals: int) -> bool:
        return bool(self.solver.solve(assumptions=[*(self.switch[name] for name in rules), *literals]))

    def core(self) -> set[str]:
        """After an unsatisfiable call: rules that suffice for it."""
        failed = set(self.solver.get_core() or ())
        return {name for name, switch in self.switch.items() if switch in failed}

    def denial(self, name: str) -> int:
        """A literal that, assumed, says that a user rule is broken."""
        if name not in self.negated:
            [rule] = [rule for rule in self.kb.pixel_rules if rule.name == name]
            assert rule.body is not None
            self.negated[name] = self._fresh()
            broken = []
            for clause in rule_clauses(name, rule.body):
                broken.append(self._fresh())  # this clause is: all its literals are false
                for literal in self._literals(clause):
                    self.solver.add_clause([-broken[-1], -literal])
            self.solver.add_clause([-self.negated[name], *broken])
        return self.negated[name]


def lint(kb: KnowledgeBase) -> list[Finding]:
    """All findings, errors first."""
    findings: list[Finding] = []
    contradiction = smallest_contradiction(kb)
    if contradiction:
        findings.append(
            Finding(
                "contradiction",
                contradiction,
                "these rules contradict each other: " + "; ".join(contradiction),
            )
        )
    else:
        solver = _Switched(kb)
        rules = list(solver.switch)
        for name, variable in solver.variable.items():
            if not solver.satisfiable(rules, variable):
                because = "; ".join(_shrunk(solver, variable))
                findings.append(
                    Finding("never_true", (name,), f"class {name!r} can never be true, because of: {because}")
                )
        for rule in kb.pixel_rules:
            others = [name for name in rules if name != rule.name]
            if not solver.satisfiable(others, solver.denial(rule.name)):
                because = "; ".join(_shrunk(solver, solver.denial(rule.name), others)) or "it is always true"
                findings.append(Finding("redundant", (rule.name,), f"rule {rule.name!r} follows already: {because}"))
    for rule in kb.rules:
        if rule.body is None:
            text = f"rule {rule.name!r} counts in truth degrees only: it speaks of the batch, not of one pixel"
            findings.append(Finding("truth_only", (rule.name,), text))
    return findings


def smallest_contradiction(kb: KnowledgeBase) -> tuple[str, ...] | None:
    """A smallest set of rules that cannot all hold, None if all can.

    A set of rules contradicts itself iff it meets every "correction set" (rules whose removal restores consistency).
    So: take a smallest set that meets all correction sets known so far; if it is consistent, what it leaves out after
    growing it as far as possible is a new correction set; otherwise it is a smallest contradiction.
    """
    solver = _Switched(kb)
    rules = list(solver.switch)
    if solver.satisfiable(rules):
        return None
    from pysat.examples.hitman import Hitman

    with Hitman(solver="g4", htype="sorted") as hitman:
        while True:
            chosen: list[str] = hitman.get() or []
            if not solver.satisfiable(chosen):
                return tuple(name for name in rules if name in chosen)
            grown = list(chosen)
            for name in rules:
                if name not in chosen and solver.satisfiable([*grown, name]):
                    grown.append(name)
            hitman.hit([name for name in rules if name not in grown])


def _shrunk(solver: _Switched, literal: int, rules: list[str] | None = None) -> list[str]:
    """Rules that suffice to refute a literal, none of which can be spared."""
    solver.satisfiable(list(solver.switch) if rules is None else rules, literal)
    core = solver.core()
    needed = [name for name in solver.switch if name in core]
    for name in list(needed):
        rest = [other for other in needed if other != name]
        if not solver.satisfiable(rest, literal):
            needed = rest
    return needed
