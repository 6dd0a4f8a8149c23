"""Reasoning about root-to-leaf paths in fused GPU kernels: from logits or probabilities to one leaf per pixel.

No number ever comes back to the host, so a training step with it can be captured and replayed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .gpu import triton_available
from .paths import PathProgram


@dataclass(frozen=True)
class Found:
    """Per pixel: the candidate taken, how probable it is among all minimal ones, and whether a rule was broken."""

    leaf: Tensor
    """An index into the leaves; their number stands for "no concept at all"."""
    prob: Tensor | None
    """P(omega | S), or its logarithm where that was asked for; 1 (or 0) outside of `valid`."""
    conflict: Tensor | None


class Reasoner:
    """The kernels' tables of one tree on one device. Predictions are (b, n, pixels), of pixels (b, pixels)."""

    def __init__(self, program: PathProgram, device: torch.device) -> None:
        from .triton_paths import Sweep
        from .triton_truth import Gauge

        self.sweep = Sweep.of(program, device)
        self.gauge = Gauge.of(program.layout, device)
        self.first_allowed = program.allowed.index(True)
        """A leaf that satisfies the user's rules."""

    def sums(self, values: Tensor, power: float, valid: Tensor | None, logits: bool) -> Tensor:
        """What truth degrees are made of; sums of several batches, or processes, add up."""
        from .triton_truth import sums_of_errors

        return sums_of_errors(self.gauge, _narrow(values), power, valid, logits)

    def degrees(self, sums: Tensor, count: Tensor, power: float, families: str) -> tuple[Tensor, Tensor]:
        """Truth degrees (3, n) of C, D and E over `count` pixels, and 1 - c(o), their mean, (n,)."""
        from .triton_truth import degrees_of

        return degrees_of(self.gauge, sums, count, power, families)

    def diagnose(
        self,
        values: Tensor,
        trust: Tensor,
        seeds: Tensor | None,
        *,
        valid: Tensor | None = None,
        logits: bool = False,
        uniform: bool = False,
        prob: bool = True,
        log: bool = False,
        conflict: bool = True,
    ) -> Found:
        """One minimal diagnosis per pixel: drawn where there is a seed for each image, else the likeliest.

        What is drawn at a pixel depends on its image's seed and on its place alone. `trust` is 1 - c(o) per channel.
        """
        from . import triton_paths

        return triton_paths.diagnose(
            self.sweep,
            _narrow(values),
            trust,
            seeds,
            valid=valid,
            logits=logits,
            uniform=uniform,
            prob=prob,
            log=log,
            conflict=conflict,
        )

    def labels(self, values: Tensor, leaf: Tensor) -> tuple[Tensor, Tensor]:
        """What was observed in probabilities, and the labels of the leaves taken (b, pixels), both (b, n, pixels)."""
        from . import triton_paths

        return triton_paths.labels(self.sweep, _narrow(values), leaf)


def _narrow(values: Tensor) -> Tensor:
    """Places within a channel are counted in 32 bits."""
    return values if values.shape[2] * values.stride(2) < 1 << 31 else values.contiguous()


def can_diagnose(program: PathProgram, device: torch.device) -> bool:
    """Whether the kernels serve a tree on a device."""
    if not fuses(device):
        return False
    from .triton_paths import MOST_LEVELS, levels

    return levels(program.layout) <= MOST_LEVELS


def can_measure(program: PathProgram, power: float, device: torch.device) -> bool:
    """Whether they measure its truth degrees too."""
    if not fuses(device):
        return False
    from .triton_truth import fits

    return fits(program.layout, power)


def fuses(device: torch.device) -> bool:
    """Whether there are fused kernels for a device at all."""
    return device.type == "cuda" and triton_available()
