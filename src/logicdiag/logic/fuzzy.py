"""Connectives and quantifiers of fuzzy logic, chosen by name.

`paper` is the default: conjunction is the product, disjunction the maximum (Eq. connective), and an implication
`a -> b` is worth 1 - a + a b, as the three derived truth degrees of the paper have it.
"""

from __future__ import annotations

import math

import torch

from ..errors import OptionError, choose
from .formula import Algebra


def _algebra(conjoin, disjoin, imply) -> Algebra:  # type: ignore[no-untyped-def]
    return Algebra(
        negate=lambda a: 1 - a,
        conjoin=conjoin,
        disjoin=disjoin,
        imply=imply,
        equal=lambda a, b: conjoin(imply(a, b), imply(b, a)),
    )


CONNECTIVES: dict[str, Algebra] = {
    "paper": _algebra(lambda a, b: a * b, torch.maximum, lambda a, b: 1 - a + a * b),
    "product": _algebra(lambda a, b: a * b, lambda a, b: a + b - a * b, lambda a, b: 1 - a + a * b),
    "godel": _algebra(torch.minimum, torch.maximum, lambda a, b: torch.maximum(1 - a, b)),
    "lukasiewicz": _algebra(
        lambda a, b: (a + b - 1).clamp(min=0),
        lambda a, b: (a + b).clamp(max=1),
        lambda a, b: (1 - a + b).clamp(max=1),
    ),
}

PRODUCT_IMPLICATION = ("paper", "product")
"""Where the error of `a -> b` is the product a (1 - b), so that sums of its powers are inner products."""

MOST_Q = 64
"""Past this the power of an error vanishes even in float64, and a violated rule would look true."""

QUANTIFIERS = ("pmean_error", "mean", "min")


def connectives(name: str) -> Algebra:
    return CONNECTIVES[choose("connectives", name, CONNECTIVES)]


def power(quantifier: str, q: float) -> float:
    """The quantifiers are means of one family: `forall` is 1 - M_p(1 - phi), `exists` is M_p(phi).

    p is q for `pmean_error` (Eq. quantifier), 1 for `mean`, and infinity for `min`.
    """
    choose("quantifier", quantifier, QUANTIFIERS)
    if not (isinstance(q, (int, float)) and 1 <= q <= MOST_Q):
        raise OptionError(f"q is {q!r}, expected a number from 1 to {MOST_Q}")
    return {"pmean_error": float(q), "mean": 1.0, "min": math.inf}[quantifier]
