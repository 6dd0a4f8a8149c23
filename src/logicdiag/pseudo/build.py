"""From a configuration to psi."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from ..errors import ConfigError, choose
from ..logic.diagnosis import Diagnoser
from ..logic.hierarchy import Hierarchy
from ..logic.knowledge import KnowledgeBase
from ..logic.leaves import Leaves
from .config import PsiConfig
from .diagnosis import Diagnosis
from .levels import SureLevels
from .target import Psi
from .threshold import Threshold

Reduce = Callable[[Tensor], object]
"""Combines a tensor over all processes, in place."""


def build_knowledge(config: PsiConfig, hierarchy: Hierarchy, base: Path | None = None) -> KnowledgeBase:
    """The rules of a configuration; a rule file is sought in `base` first, the folder of the configuration."""
    rules = rules_file(config, base) or (config.rules if isinstance(config.rules, list) else [])
    return KnowledgeBase(hierarchy, config.families, rules, config.root)


def rules_file(config: PsiConfig, base: Path | None = None) -> Path | None:
    """Where the rules stand, if they stand in a file."""
    if not isinstance(config.rules, str):
        return None
    beside = Path(base or ".") / config.rules
    return beside if beside.exists() else Path(config.rules)


def build_psi(
    config: PsiConfig,
    knowledge: KnowledgeBase,
    head: str,
    seed: int,
    reduce: Reduce | None = None,
    decision: str = "leaf",
) -> Psi:
    psi = PSI[choose("psi.name", config.name, PSI)](config, knowledge, head, seed, reduce, decision)
    if config.levels is None:
        return psi
    if head != "hierarchical":
        raise ConfigError(
            f"psi.levels is {config.levels}, but model.head is {head} and has one level; set model.head to "
            "hierarchical, or psi.levels to null"
        )
    if isinstance(psi, Diagnosis) and not psi.single_leaf:
        raise ConfigError(
            f"psi.levels is {config.levels}, which needs one leaf a pixel: psi.families CDE, psi.root asserted, and a "
            "psi.strategy other than soft; or set psi.levels to null"
        )
    return SureLevels(psi, Leaves(knowledge.hierarchy, decision), config.levels)


def _threshold(
    config: PsiConfig, knowledge: KnowledgeBase, head: str, seed: int, reduce: Reduce | None, decision: str
) -> Psi:
    # where levels are left out one by one, none is left out altogether
    least = config.threshold if config.levels is None else 0.0
    return Threshold(knowledge.hierarchy, least, head, decision)


def _diagnosis(
    config: PsiConfig, knowledge: KnowledgeBase, head: str, seed: int, reduce: Reduce | None, decision: str
) -> Psi:
    if head != "hierarchical":
        raise ConfigError(
            f"psi.name is diagnosis, which reasons about every concept, but model.head is {head} and predicts leaves "
            "alone; set model.head to hierarchical, or psi.name to threshold"
        )
    diagnoser = Diagnoser(knowledge, config.strategy, config.q, config.connectives, config.quantifier, config.budget)
    return Diagnosis(diagnoser, config.weight, seed, reduce)


PSI: dict[str, Callable[[PsiConfig, KnowledgeBase, str, int, Reduce | None, str], Psi]] = {
    "diagnosis": _diagnosis,
    "threshold": _threshold,
}
