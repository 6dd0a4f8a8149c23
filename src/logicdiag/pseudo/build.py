"""From a configuration to psi."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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
from .possible import PossibleLeaves
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


@dataclass(frozen=True)
class PsiSetting:
    """What psi is built from."""

    config: PsiConfig
    knowledge: KnowledgeBase
    head: str
    """Of the model: hierarchical or flat."""
    seed: int = 0
    reduce: Reduce | None = None
    decision: str = "leaf"
    """Which outputs of the hierarchical head decide."""


def build_psi(setting: PsiSetting) -> Psi:
    config = setting.config
    psi = PSI[choose("psi.name", config.name, PSI)](setting)
    if config.levels is not None:
        return _levels(psi, setting, config.levels)
    if config.possible is not None:
        return _possible(psi, setting, config.possible)
    return psi


def _levels(psi: Psi, s: PsiSetting, least: float) -> Psi:
    if s.config.possible is not None:
        raise ConfigError(
            f"psi.levels is {least} and psi.possible is {s.config.possible}, but a pixel is learned by one of them; "
            "set the other to null"
        )
    if s.head != "hierarchical":
        raise ConfigError(
            f"psi.levels is {least}, but model.head is {s.head} and has one level; set model.head to "
            "hierarchical, or psi.levels to null"
        )
    _one_leaf(psi, "psi.levels", least)
    return SureLevels(psi, Leaves(s.knowledge.hierarchy, s.decision), least)


def _possible(psi: Psi, s: PsiSetting, least: float) -> Psi:
    _one_leaf(psi, "psi.possible", least)
    leaves = Leaves(s.knowledge.hierarchy, s.decision) if s.head == "hierarchical" else None
    return PossibleLeaves(psi, leaves, least)


def _one_leaf(psi: Psi, key: str, value: float) -> None:
    if isinstance(psi, Diagnosis) and not psi.single_leaf:
        raise ConfigError(
            f"{key} is {value}, which needs one leaf a pixel: psi.families CDE, psi.root asserted, and a "
            f"psi.strategy other than soft; or set {key} to null"
        )


def _threshold(s: PsiSetting) -> Psi:
    # where levels or leaves are left out one by one, no pixel is left out altogether
    least = s.config.threshold if s.config.levels is None and s.config.possible is None else 0.0
    return Threshold(s.knowledge.hierarchy, least, s.head, s.decision)


def _diagnosis(s: PsiSetting) -> Psi:
    if s.head != "hierarchical":
        raise ConfigError(
            f"psi.name is diagnosis, which reasons about every concept, but model.head is {s.head} and predicts leaves "
            "alone; set model.head to hierarchical, or psi.name to threshold"
        )
    c = s.config
    diagnoser = Diagnoser(s.knowledge, c.strategy, c.q, c.connectives, c.quantifier, c.budget)
    return Diagnosis(diagnoser, c.weight, s.seed, s.reduce)


PSI: dict[str, Callable[[PsiSetting], Psi]] = {
    "diagnosis": _diagnosis,
    "threshold": _threshold,
}
