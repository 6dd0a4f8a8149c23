"""From a configuration to psi."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from ..errors import ConfigError, choose
from ..logic.diagnosis import Diagnoser
from ..logic.hierarchy import Hierarchy
from ..logic.knowledge import KnowledgeBase
from .config import PsiConfig
from .diagnosis import Diagnosis
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
) -> Psi:
    return PSI[choose("psi.name", config.name, PSI)](config, knowledge, head, seed, reduce)


def _threshold(config: PsiConfig, knowledge: KnowledgeBase, head: str, seed: int, reduce: Reduce | None) -> Psi:
    return Threshold(knowledge.hierarchy, config.threshold, head)


def _diagnosis(config: PsiConfig, knowledge: KnowledgeBase, head: str, seed: int, reduce: Reduce | None) -> Psi:
    if head != "hierarchical":
        raise ConfigError(
            f"psi.name is diagnosis, which reasons about every concept, but model.head is {head} and predicts leaves "
            "alone; set model.head to hierarchical, or psi.name to threshold"
        )
    diagnoser = Diagnoser(knowledge, config.strategy, config.q, config.connectives, config.quantifier, config.budget)
    return Diagnosis(diagnoser, config.weight, seed, reduce)


PSI: dict[str, Callable[[PsiConfig, KnowledgeBase, str, int, Reduce | None], Psi]] = {
    "diagnosis": _diagnosis,
    "threshold": _threshold,
}
