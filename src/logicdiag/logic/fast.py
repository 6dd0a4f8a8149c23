"""A diagnoser's work in fused GPU kernels, where rules and device allow it; the same diagnoses, weights and degrees."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..kernels.fused import can_diagnose, can_measure
from ..kernels.paths import PathProgram
from ..kernels.tables import Found, Gauge, Sweep
from .blocks import are_probabilities, not_probabilities
from .fuzzy import power
from .repair import Result, working_dtype

if TYPE_CHECKING:
    from .diagnosis import Diagnoser

NARROW, MOST_IMAGES = 256, 65535
"""Images of fewer pixels, or more images, are laid side by side first."""


class Fast:
    """Predictions are (b, n, pixels) here, of pixels (b, pixels); probabilities, or logits where that is said."""

    def __init__(self, diagnoser: Diagnoser, program: PathProgram, device: torch.device) -> None:
        self.kb, self.strategy = diagnoser.kb, diagnoser.strategy
        self.power = power(diagnoser.quantifier, diagnoser.q)
        self.sweep, self.gauge = Sweep.of(program, device), Gauge.of(program.layout, device)
        self.first_allowed = program.allowed.index(True)
        self.measures = (
            diagnoser.connectives == "paper" and not self.kb.rules and can_measure(program, self.power, device)
        )
        """Whether truth degrees, too, are measured here."""

    @classmethod
    def of(cls, diagnoser: Diagnoser, device: torch.device) -> Fast | None:
        """None where it has to be done in the ordinary way."""
        parts = diagnoser.program.parts
        if diagnoser.strategy == "soft" or len(parts) != 1 or not isinstance(parts[0], PathProgram):
            return None
        return cls(diagnoser, parts[0], device) if can_diagnose(parts[0], device) else None

    @property
    def draws(self) -> bool:
        return self.strategy != "greedy"

    def sums(self, values: Tensor, valid: Tensor | None, logits: bool) -> Tensor:
        """What truth degrees are made of: sums over pixels, which add up over tensors and processes."""
        from ..kernels.triton_truth import sums_of_errors  # Triton is not everywhere

        return sums_of_errors(self.gauge, values, self.power, valid, logits)

    def degrees(self, sums: Tensor, count: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Truth degrees by family, and 1 - c(o), both in channel order."""
        from ..kernels.triton_truth import degrees_of

        degrees, trust = degrees_of(self.gauge, sums, count, self.power, self.kb.families)
        return {family: row for family, row in zip("CDE", degrees, strict=True) if family in self.kb.families}, trust

    def diagnose(
        self,
        values: Tensor,
        trust: Tensor,
        seeds: Tensor,
        valid: Tensor | None,
        logits: bool = False,
        log: bool = False,
        prob: bool = True,
        conflict: bool = True,
    ) -> Found:
        """One minimal diagnosis per pixel, drawn or the likeliest as the strategy says; a seed for each image."""
        from ..kernels import triton_paths

        return triton_paths.diagnose(
            self.sweep,
            values,
            trust,
            seeds if self.draws else None,
            valid=valid,
            logits=logits,
            uniform=self.strategy == "uniform",
            prob=prob,
            log=log,
            conflict=conflict,
        )

    def labels(self, values: Tensor, leaf: Tensor) -> tuple[Tensor, Tensor]:
        """What was observed in probabilities, and the labels of the leaves taken, both (b, n, pixels)."""
        from ..kernels import triton_paths

        return triton_paths.labels(self.sweep, values, leaf)

    # ---- for `Diagnoser` -----------------------------------------------------------------------

    def truth_degrees(self, probs: Tensor, dim: int, valid: Tensor | None) -> dict[str, Tensor]:
        values, pixels, _ = _flat(probs, dim, valid)
        self._refuse(values, pixels, probs, dim, valid)
        count = torch.tensor(values.shape[0] * values.shape[2]) if pixels is None else pixels.sum()
        degrees, _ = self.degrees(self.sums(values, pixels, False), count.to(values.device))
        return {family: row.double() for family, row in degrees.items()}

    def result(
        self,
        probs: Tensor,
        dim: int,
        valid: Tensor | None,
        generator: torch.Generator | None,
        trust: Tensor,
        degrees: Mapping[str, Tensor],
        checked: bool,
    ) -> Result:
        """`checked`: the probabilities are known to be such."""
        values, pixels, shape = _flat(probs, dim, valid)
        if not checked:
            self._refuse(values, pixels, probs, dim, valid)
        seeds = torch.randint(1 << 62, (values.shape[0],), generator=generator, device=values.device)
        found = self.diagnose(values, trust, seeds, pixels, log=True)
        assert found.prob is not None
        assert found.conflict is not None
        leaf = found.leaf.long()
        if pixels is not None:
            leaf = torch.where(pixels, leaf, self.first_allowed)  # what does not count satisfies the rules, too
        observed, revised = self.labels(values, leaf)
        single = leaf < len(self.kb.hierarchy.leaves)
        if pixels is not None:
            single &= pixels
        return Result(
            observed=_unflat(observed, shape).movedim(0, dim),
            revised=_unflat(revised, shape).movedim(0, dim),
            conflict=found.conflict.reshape(shape),
            leaf=torch.where(single, leaf, -1).reshape(shape),
            log_prob=found.prob.reshape(shape).to(working_dtype(probs)),
            expected=None,
            exhaustive=torch.ones(shape, dtype=torch.bool, device=probs.device),
            truth_degrees=dict(degrees),
        )

    def _refuse(self, values: Tensor, pixels: Tensor | None, probs: Tensor, dim: int, valid: Tensor | None) -> None:
        if not are_probabilities(values):
            meant = values if pixels is None else values.movedim(1, 0)[:, pixels]
            if pixels is None or not are_probabilities(meant):
                raise not_probabilities(probs, dim, self.kb.hierarchy, valid)


def _flat(probs: Tensor, dim: int, valid: Tensor | None) -> tuple[Tensor, Tensor | None, tuple[int, ...]]:
    """(b, n, pixels), (b, pixels), and the shape of the pixels; no copy where the layout allows it."""
    dim %= probs.dim()
    before, after = probs.shape[:dim], probs.shape[dim + 1 :]
    values = probs.reshape(before.numel(), probs.shape[dim], after.numel())
    pixels = None if valid is None else valid.reshape(before.numel(), after.numel())
    if (values.shape[2] < NARROW and values.shape[0] > 1) or values.shape[0] > MOST_IMAGES:
        values = values.movedim(1, 0).reshape(1, values.shape[1], -1)
        pixels = None if pixels is None else pixels.reshape(1, -1)
    if pixels is not None:
        pixels = pixels.contiguous()
    return values, pixels, (*before, *after)


def _unflat(labels: Tensor, shape: tuple[int, ...]) -> Tensor:
    """(b, n, pixels) -> (n, *shape)."""
    return labels.movedim(1, 0).reshape(labels.shape[1], *shape)
