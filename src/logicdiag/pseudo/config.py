"""The `psi` part of a configuration."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class PsiConfig:
    """How a teacher's prediction becomes a target."""

    name: str = "diagnosis"
    """diagnosis (logical reasoning; needs the hierarchical head) or threshold (confidence)."""
    threshold: float = 0.95
    """threshold: only pixels at least this sure count."""
    levels: float | None = None
    """With the hierarchical head: of each pixel only the levels are learned whose concept is at least this likely among
    the leaves and what is above them; a pixel with none does not count. 0: all levels of every pixel that counts (the
    paper); null: 0.95 for a diagnosis that takes one leaf (families CDE, root asserted, not soft; target leaf), else 0.
    """
    target: str = "leaf"
    """leaf: a path, where psi takes one leaf, so that `loss.leaf` comes on top; or concepts: each label by itself, as
    where labels need be no path. So families of rules are compared by one loss. It goes with all levels.
    """
    strategy: str = "sampling"
    """diagnosis: uniform, predictive, greedy, sampling or soft."""
    families: str = "CDE"
    """diagnosis: the rule families in force, of C (composition), D (decomposition) and E (exclusion)."""
    rules: str | list[str] | None = None
    """Rules of your own: a file, or a list of rules."""
    root: str = "asserted"
    """asserted (every pixel is something) or free."""
    q: float = 5.0
    """The exponent of the quantifier for all."""
    connectives: str = "paper"
    """paper, product, godel or lukasiewicz."""
    quantifier: str = "pmean_error"
    """pmean_error, mean or min."""
    budget: int = 1024
    """Most diagnoses of one pixel that are listed, where tangled rules make listing necessary."""
    weight: str | None = None
    """diagnosis: what a pixel counts: one (the paper), posterior (the probability of the diagnosis taken), or
    likelihood (the probability of all its labels together, as the outputs have it); null: one where only sure levels
    are learned, else posterior.
    """
