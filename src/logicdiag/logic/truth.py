"""Truth degrees of the rules over all pixels of a batch (Eq. quantifier, truth_degree), block by block."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce

import torch
from jaxtyping import Float
from torch import Tensor

from ..kernels.layout import Layout
from ..kernels.truth import FamilyErrors, PowerMean
from .formula import Atom, Exists, Forall, Formula, Not, atoms, interpret, quantified
from .fuzzy import PRODUCT_IMPLICATION, connectives, power
from .knowledge import KnowledgeBase


class TruthMeter:
    """Adds up the errors of every rule over blocks of pixels; `degrees` reads them off.

    Blocks may come in any number and order, from several processes too: see `reduce`.
    """

    def __init__(
        self,
        kb: KnowledgeBase,
        layout: Layout,
        q: float = 5,
        connectives_name: str = "paper",
        quantifier: str = "pmean_error",
        device: torch.device | str = "cpu",
    ) -> None:
        self.kb, self.layout = kb, layout
        self.algebra = connectives(connectives_name)
        self.power = power(quantifier, q)
        self.pixels = torch.zeros((), dtype=torch.float64, device=device)
        some = self.algebra.disjoin
        self.families = FamilyErrors(
            layout,
            kb.families,
            self.power,
            imply_error=lambda a, b: 1 - self.algebra.imply(a, b),
            some=(lambda rows: rows.amax(0))
            if connectives_name == "paper"
            else lambda rows: reduce(some, rows.unbind(0)),
            product=connectives_name in PRODUCT_IMPLICATION,
            device=torch.device(device),
        )
        self.sentences: dict[Formula, PowerMean] = {
            sentence: PowerMean.zeros((), self.power, torch.device(device))
            for rule in kb.rules
            for sentence in _sentences(rule.formula)
        }

    def add(self, rows: Float[Tensor, "n pixels"]) -> None:
        """Count a block of pixels, as rows in the order of the layout."""
        self.pixels += rows.shape[1]
        if math.isfinite(self.power) and self.power > 6:
            rows = rows.double()  # powers of small errors vanish in float32
        self.families.add(rows)
        row_of, index = self.layout.row_of, self.kb.hierarchy.index
        for sentence, mean in self.sentences.items():
            value = interpret(sentence.body, lambda name: rows[row_of[index(name)]], self.algebra)  # type: ignore[union-attr]
            mean.add(value if isinstance(sentence, Exists) else 1 - value, ())

    def reduce(self, combine: Callable[[Tensor], object]) -> None:
        """Apply `combine` in place to every sum, as an all-reduce over processes does.

        Use a maximum instead of a sum where the quantifier is `min`; `pixels` is always summed.
        """
        for total in (
            *self.families.tensors(),
            *(mean.total for mean in self.sentences.values()),
            self.pixels,
        ):
            combine(total)

    def degrees(self) -> dict[str, Float[Tensor, " n"]]:
        """g(o, k) for every concept o, by family and by the name of each user rule; 1 where a rule says nothing of
        o.
        """
        count = int(self.pixels)
        order = torch.tensor(self.layout.row_of, device=self.pixels.device)
        degrees = {family: values[order] for family, values in self.families.degrees(count).items()}
        for rule in self.kb.rules:
            value = interpret(rule.formula, _no_free_atom, self.algebra, lambda part: self._sentence(part, count))
            vector = torch.ones(len(self.layout.order), dtype=torch.float64, device=self.pixels.device)
            vector[[self.kb.hierarchy.index(name) for name in atoms(rule.formula)]] = value
            degrees[rule.name] = vector
        return degrees

    def _sentence(self, sentence: Formula, count: int) -> Tensor:
        mean = self.sentences[sentence].value(count)
        return mean if isinstance(sentence, Exists) else 1 - mean


def conflict_degree(degrees: dict[str, Float[Tensor, " n"]], n: int) -> Float[Tensor, " n"]:
    """c(o) = 1 - the mean of g(o, k) over the enabled families and the user's rules (Eq. truth_degree)."""
    if not degrees:
        return torch.zeros(n, dtype=torch.float64)
    return 1 - torch.stack(list(degrees.values())).mean(0)


def _sentences(formula: Formula) -> list[Formula]:
    """The quantified parts of a rule; what stands around them only combines their degrees."""
    found: list[Formula] = []
    stack = [formula]
    while stack:
        part = stack.pop()
        if not quantified(part):
            continue
        if isinstance(part, (Forall, Exists)):
            found.append(part)
        elif isinstance(part, Not):
            stack.append(part.body)
        elif not isinstance(part, Atom):
            stack += [part.left, part.right]
    return found


def _no_free_atom(name: str) -> Tensor:
    raise TypeError(f"{name} stands outside of a quantifier")
