"""Whether Triton's kernels can be used."""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec


@lru_cache(maxsize=1)
def triton_available() -> bool:
    """Triton comes with PyTorch for GPUs, but not on every platform; PyTorch does the same without."""
    return find_spec("triton") is not None
