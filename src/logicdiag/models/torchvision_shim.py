"""timm, also where torchvision's wheel does not fit the torch beside it.

timm imports torchvision, and torchvision refuses to load without its compiled operators: a CPU-only torch beside a CUDA
wheel of torchvision ends in "operator torchvision::nms does not exist". No model here uses those operators.
"""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import torch

from ..errors import OptionError

# The operators that torchvision describes while it is imported, whether or not they were loaded.
SCHEMAS = ("nms", "qnms")


def import_timm() -> ModuleType:
    """timm, with what torchvision misses defined first; an error that says how to install it where it is not there."""
    if importlib.util.find_spec("timm") is None:
        raise OptionError("this encoder is timm's, and timm is not installed: pip install timm")
    define_missing_operators()
    import timm

    return timm  # type: ignore[no-any-return, unused-ignore]  # timm has no types in some versions


@cache  # the definitions live as long as the library object does
def define_missing_operators() -> torch.library.Library | None:
    """Define the operators that torchvision needs to be imported; nothing where it loads by itself."""
    spec = importlib.util.find_spec("torchvision")
    if "torchvision" in sys.modules or spec is None or spec.origin is None or _loads(Path(spec.origin).parent):
        return None
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in SCHEMAS:
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


def _loads(folder: Path) -> bool:
    """Whether the compiled operators load, which torchvision would do next in the same way."""
    try:
        for file in (*folder.glob("_C*.so"), *folder.glob("_C*.pyd")):
            torch.ops.load_library(file)
    except (ImportError, OSError):
        return False
    return hasattr(torch.ops.torchvision, "nms")
