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

PSI = {
    "diagnosis": "labels that break a rule are repaired by a minimal diagnosis",
    "threshold": "the likeliest leaf, where it is likely enough",
}


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
    reduce: Callable[[Tensor], object] | None = None,
) -> Psi:
    choose("psi.name", config.name, PSI)
    if config.name == "threshold":
        return Threshold(knowledge.hierarchy, config.threshold, head)
    if head != "hierarchical":
        raise ConfigError(
            f"psi.name is diagnosis, which reasons about every concept, but model.head is {head} and predicts leaves "
            "alone; set model.head to hierarchical, or psi.name to threshold"
        )
    diagnoser = Diagnoser(knowledge, config.strategy, config.q, config.connectives, config.quantifier, config.budget)
    return Diagnosis(diagnoser, config.weight, seed, reduce)
