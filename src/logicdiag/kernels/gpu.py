"""Whether Triton's kernels can be used."""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec

import torch


def fuses(device: torch.device) -> bool:
    """Whether there are fused kernels for a device; PyTorch does the same without."""
    return device.type == "cuda" and _has_triton()


@lru_cache(maxsize=1)
def _has_triton() -> bool:
    """It comes with PyTorch for GPUs, but not on every platform."""
    return find_spec("triton") is not None
