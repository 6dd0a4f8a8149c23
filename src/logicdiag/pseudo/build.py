"""From a configuration to psi."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from ..errors import ConfigError, OptionError, choose
from ..logic.diagnosis import Diagnoser
from ..logic.hierarchy import Hierarchy
from ..logic.knowledge import KnowledgeBase
from ..logic.leaves import Leaves
from .concepts import TARGETS, Concepts
from .config import PsiConfig
from .diagnosis import Diagnosis, takes_one_leaf
from .levels import SureLevels
from .target import Psi
from .threshold import Threshold
from .witness import Witnessed

SURE = 0.95
"""`psi.levels` of a diagnosis, unless the configuration says."""
Reduce = Callable[[Tensor], object]
"""Combines a tensor over all processes, in place."""


def build_knowledge(config: PsiConfig, hierarchy: Hierarchy, base: Path | None = None) -> KnowledgeBase:
    """The rules of a configuration; a rule file is sought in `base` first, the folder of the configuration."""
    rules = rules_file(config, base) or (config.rules if isinstance(config.rules, list) else [])
    with _named_by_key():
        return KnowledgeBase(hierarchy, config.families, rules, config.root)


@contextmanager
def _named_by_key() -> Iterator[None]:
    """An option of the library has the name of its key, but for the part that it stands in."""
    try:
        yield
    except OptionError as error:
        raise OptionError(f"psi.{error}") from None


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
    witness: Sequence[str] = ()
    """Concepts that a witness tells of unlabelled images."""


def refuse_flat(config: PsiConfig, head: str) -> None:
    """A diagnosis needs the outputs of all concepts."""
    if config.name == "diagnosis" and head != "hierarchical":
        raise ConfigError(
            f"psi.name is diagnosis, which reasons about every concept, but model.head is {head} and predicts leaves "
            "alone; set model.head to hierarchical, or psi.name to threshold"
        )


def build_psi(setting: PsiSetting) -> Psi:
    psi = _build(setting)
    if not setting.witness:
        return psi
    return Witnessed(psi, setting.knowledge.hierarchy, setting.witness, setting.head, setting.decision)


def _build(setting: PsiSetting) -> Psi:
    psi = PSI[choose("psi.name", setting.config.name, PSI)](setting)
    levels, by_concepts = _levels(setting), _by_concepts(setting)
    leaves = Leaves(setting.knowledge.hierarchy, setting.decision)
    if levels == 0:
        return Concepts(psi, leaves) if by_concepts else psi
    if setting.head != "hierarchical":
        raise ConfigError(
            f"psi.levels is {levels}, but model.head is {setting.head} and has one level; set model.head to "
            "hierarchical, or psi.levels to 0"
        )
    if isinstance(psi, Diagnosis) and not psi.single_leaf:
        raise ConfigError(
            f"psi.levels is {levels}, which needs one leaf a pixel: psi.families CDE, psi.root asserted, and a "
            "psi.strategy other than soft; or set psi.levels to 0"
        )
    if by_concepts:
        raise ConfigError(
            f"psi.levels is {levels}, which learns the beginning of a path to a leaf, but psi.target is concepts; set "
            "psi.levels to 0, or psi.target to leaf"
        )
    return SureLevels(psi, leaves, levels)


def _by_concepts(s: PsiSetting) -> bool:
    if choose("psi.target", s.config.target, TARGETS) == "leaf":
        return False
    if s.head != "hierarchical":
        raise ConfigError(
            f"psi.target is concepts, but model.head is {s.head} and learns leaves; set model.head to hierarchical, or "
            "psi.target to leaf"
        )
    return True


def _levels(s: PsiSetting) -> float:
    """How likely a concept must be to be learned; 0: all are."""
    c = s.config
    if c.levels is not None:
        return c.levels
    one_leaf = c.name == "diagnosis" and c.target == "leaf" and takes_one_leaf(s.knowledge, c.strategy)
    return SURE if one_leaf else 0.0


def _threshold(s: PsiSetting) -> Psi:
    # where levels are left out one by one, none is left out altogether
    least = 0.0 if _levels(s) else s.config.threshold
    return Threshold(s.knowledge.hierarchy, least, s.head, s.decision)


def _diagnosis(s: PsiSetting) -> Psi:
    refuse_flat(s.config, s.head)
    c = s.config
    with _named_by_key():
        diagnoser = Diagnoser(s.knowledge, c.strategy, c.q, c.connectives, c.quantifier, c.budget)
    weight = c.weight or ("one" if _levels(s) else "posterior")
    return Diagnosis(diagnoser, weight, s.seed, s.reduce)


PSI: dict[str, Callable[[PsiSetting], Psi]] = {
    "diagnosis": _diagnosis,
    "threshold": _threshold,
}
