"""Rules as clauses, for solvers and for the search.

A clause is a set of literals (concept, value), of which one must hold.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..errors import LogicDiagError
from ..kernels.layout import ROOT
from .formula import And, Atom, Formula, Iff, Implies, Not, Or, written
from .knowledge import KnowledgeBase

Literal = tuple[str, bool]
Clause = frozenset[Literal]

MOST = 50_000
"""Clauses one rule may expand to."""


class _TooMany(Exception):
    pass


def rule_clauses(name: str, body: Formula) -> set[Clause]:
    """The clauses of a per-pixel formula.

    >>> sorted(map(sorted, rule_clauses("r", Implies(Atom("a"), And(Atom("b"), Not(Atom("c")))))))
    [[('a', False), ('b', True)], [('a', False), ('c', False)]]
    """
    try:
        return _clauses(body, True)
    except _TooMany:
        raise LogicDiagError(
            f"rule {name!r} expands to more than {MOST} clauses; split it into several rules"
        ) from None


def family_clauses(kb: KnowledgeBase) -> Iterator[tuple[str, Clause]]:
    """(rule text, clause) of every rule of the enabled families, C and D before E."""
    names = kb.hierarchy.names
    text_of = [written(name) for name in names]
    for parent, kids in kb.groups:
        if parent != ROOT and "C" in kb.families:
            for kid in kids:
                yield (
                    f"C: {text_of[kid]} -> {text_of[parent]}",
                    frozenset({(names[kid], False), (names[parent], True)}),
                )
        if "D" in kb.families and (parent != ROOT or kb.root_holds):
            some = {(names[kid], True) for kid in kids}
            owner = set() if parent == ROOT else {(names[parent], False)}
            text = "root" if parent == ROOT else text_of[parent]
            yield f"D: {text} -> {' | '.join(text_of[k] for k in kids)}", frozenset(some | owner)
    if "E" in kb.families:
        for _, kids in kb.groups:
            for i, kid in enumerate(kids):
                for other in kids[i + 1 :]:
                    yield (
                        f"E: {text_of[kid]} -> ~{text_of[other]}",
                        frozenset({(names[kid], False), (names[other], False)}),
                    )


def _clauses(formula: Formula, value: bool) -> set[Clause]:
    """Clauses that say: the formula has this value."""
    if isinstance(formula, Atom):
        return {frozenset({(formula.name, value)})}
    if isinstance(formula, Not):
        return _clauses(formula.body, not value)
    if isinstance(formula, Implies):
        return _clauses(Or(Not(formula.left), formula.right), value)
    if isinstance(formula, Iff):
        a, b = formula.left, formula.right
        return _both(_either(a, False, b, value), _either(a, True, b, not value))
    if isinstance(formula, (And, Or)):
        if isinstance(formula, And) == value:
            return _both(_clauses(formula.left, value), _clauses(formula.right, value))
        return _either(formula.left, value, formula.right, value)
    raise TypeError(f"a quantifier inside a per-pixel formula: {formula}")


def _either(a: Formula, a_value: bool, b: Formula, b_value: bool) -> set[Clause]:
    left, right = _clauses(a, a_value), _clauses(b, b_value)
    if len(left) * len(right) > MOST:
        raise _TooMany
    products = (one | other for one in left for other in right)
    return {clause for clause in products if not any((name, not value) in clause for name, value in clause)}


def _both(left: set[Clause], right: set[Clause]) -> set[Clause]:
    if len(left) + len(right) > MOST:
        raise _TooMany
    return left | right
