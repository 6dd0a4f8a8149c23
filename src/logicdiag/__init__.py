"""Exact minimal diagnoses of predictions that break the rules of a class hierarchy.

>>> import logicdiag as ld
>>> h = ld.Hierarchy.from_dict({"animal": ["bird", "cat"], "vehicle": ["car", "bus"], "sky": None})
>>> kb = ld.KnowledgeBase(h)
>>> d = ld.Diagnoser(kb, strategy="greedy")
>>> [sorted(x.flips) for x in d.diagnoses(dict(animal=.8, bird=.9, cat=.1, vehicle=.2, car=.6, bus=.1, sky=.1))]
[['car'], ['animal', 'bird', 'vehicle']]
"""

from .errors import (
    ContradictionError,
    HierarchyError,
    LogicDiagError,
    OptionError,
    ProbabilityError,
    RuleError,
    TangledRulesWarning,
)
from .logic.diagnosis import Diagnoser, Diagnoses, Diagnosis
from .logic.explain import Explanation
from .logic.formula import Rule
from .logic.hierarchy import Hierarchy
from .logic.knowledge import KnowledgeBase
from .logic.parser import parse, parse_file
from .logic.repair import Result
from .logic.truth import TruthMeter

__version__ = "0.1.0"

__all__ = [
    "ContradictionError",
    "Diagnoser",
    "Diagnoses",
    "Diagnosis",
    "Explanation",
    "Hierarchy",
    "HierarchyError",
    "KnowledgeBase",
    "LogicDiagError",
    "OptionError",
    "ProbabilityError",
    "Result",
    "Rule",
    "RuleError",
    "TangledRulesWarning",
    "TruthMeter",
    "parse",
    "parse_file",
]
