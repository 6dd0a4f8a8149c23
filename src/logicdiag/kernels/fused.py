"""Where reasoning about root-to-leaf paths is done in fused GPU kernels: `triton_paths` and `triton_truth`.

No number ever comes back from them to the host, so a training step with them can be captured and replayed.
"""

from __future__ import annotations

import torch

from .gpu import fuses
from .paths import PathProgram
from .tables import MOST_LEVELS, MOST_POWER, MOST_SIBLINGS, levels


def can_diagnose(program: PathProgram, device: torch.device) -> bool:
    """Whether the kernels serve a tree on a device."""
    return fuses(device) and levels(program.layout) <= MOST_LEVELS


def can_measure(program: PathProgram, power: float, device: torch.device) -> bool:
    """Whether they measure its truth degrees too."""
    most = max(group.size for group in program.layout.groups)
    return fuses(device) and power <= MOST_POWER and most <= MOST_SIBLINGS
