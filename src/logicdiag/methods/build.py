"""The methods by name."""

from __future__ import annotations

from ..errors import choose
from .ael import AEL
from .algorithm1 import Algorithm1
from .cps import CPS
from .fixmatch import FixMatch
from .mean_teacher import MeanTeacher
from .method import Method, Setting
from .mkd import MKD
from .stpp import STPP
from .supervised import Supervised
from .u2pl import U2PL
from .unimatch import UniMatch

METHODS: dict[str, type[Method]] = {
    "supervised": Supervised,
    "fixmatch": FixMatch,
    "mean_teacher": MeanTeacher,
    "unimatch": UniMatch,
    "cps": CPS,
    "mkd": MKD,
    "u2pl": U2PL,
    "ael": AEL,
    "st++": STPP,
    "algorithm1": Algorithm1,
}


def build_method(setting: Setting) -> Method:
    return METHODS[choose("method.name", setting.config.name, METHODS)](setting)
