"""The specification: plain loops over Python numbers, for small trees. Nothing here is meant to be fast.

A tree is the parent index of every node (-1 at the top level); a knowledge base is that tree, a set of families,
whether the root holds, and Python functions for further rules.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence

Label = tuple[bool, ...]


def children(parents: Sequence[int], node: int) -> list[int]:
    return [child for child, parent in enumerate(parents) if parent == node]


def siblings(parents: Sequence[int], node: int) -> list[int]:
    return [other for other in children(parents, parents[node]) if other != node]


def is_consistent(
    label: Label,
    parents: Sequence[int],
    families: str,
    root_holds: bool,
    rules: Iterable[Callable[[Label], bool]] = (),
) -> bool:
    for node, parent in enumerate(parents):
        kids = children(parents, node)
        if "C" in families and label[node] and parent >= 0 and not label[parent]:
            return False
        if "D" in families and label[node] and kids and not any(label[kid] for kid in kids):
            return False
        if "E" in families and label[node] and any(label[other] for other in siblings(parents, node)):
            return False
    if root_holds and not any(label[top] for top in children(parents, -1)):
        return False
    return all(rule(label) for rule in rules)


def models(n: int, consistent: Callable[[Label], bool]) -> list[Label]:
    """Every label that satisfies the rules, by trying all 2^n."""
    return [label for label in itertools.product((False, True), repeat=n) if consistent(label)]


def minimal_diagnoses(observed: Label, all_models: Iterable[Label]) -> set[frozenset[int]]:
    """The subset-minimal sets of outputs whose flipping satisfies the rules (Eq. diagnosis, fact 1)."""
    flips = {
        frozenset(i for i, (o, m) in enumerate(zip(observed, model, strict=True)) if o != m) for model in all_models
    }
    return {one for one in flips if not any(other < one for other in flips)}


def truth_degrees(probs: Sequence[Sequence[float]], parents: Sequence[int], q: float) -> dict[str, list[float]]:
    """Eq. fuzzy:composition, fuzzy:decomposition and fuzzy:exclusion, a loop each; vacuous degrees are 1."""
    n, count = len(parents), len(probs)

    def error(terms: Iterable[float]) -> float:
        return (math.fsum(term**q for term in terms) / count) ** (1 / q) if count else 0.0

    degrees = {"C": [1.0] * n, "D": [1.0] * n, "E": [1.0] * n}
    for o in range(n):
        parent, kids, others = parents[o], children(parents, o), siblings(parents, o)
        if parent >= 0:
            degrees["C"][o] = 1 - error(p[o] - p[o] * p[parent] for p in probs)
        if kids:
            degrees["D"][o] = 1 - error(p[o] - p[o] * max(p[kid] for kid in kids) for p in probs)
        if others:
            degrees["E"][o] = 1 - math.fsum(error(p[o] * p[s] for p in probs) for s in others) / len(others)
    return degrees


def normality(prob: float, conflict_degree: float, epsilon: float) -> float:
    """P(t(o)) of one output (Eq. fail), clamped."""
    confidence = prob if prob > 0.5 else 1 - prob
    return min(max(confidence * (1 - conflict_degree), epsilon), 1 - epsilon)


def posterior(diagnoses: Iterable[frozenset[int]], normal: Sequence[float]) -> dict[frozenset[int], float]:
    """P(omega | S) of every diagnosis (Eq. likelihood), normalised over those given."""
    logs = {
        flips: math.fsum(math.log(1 - t) if o in flips else math.log(t) for o, t in enumerate(normal))
        for flips in diagnoses
    }
    top = max(logs.values())
    total = math.fsum(math.exp(value - top) for value in logs.values())
    return {flips: math.exp(value - top) / total for flips, value in logs.items()}
