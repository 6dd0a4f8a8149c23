"""What every way of diagnosing hands back, and the two ways of choosing among weighted candidates."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Bool, Float
from torch import Tensor


FORBIDDEN = 1e30
"""Subtracted from the log weight of what is no minimal diagnosis: past any sum of log ratios, and exp() of it is 0."""


@dataclass
class Taken:
    """The diagnosis taken at each pixel of a block, as rows."""

    revised: Bool[Tensor, "n pixels"]
    log_prob: Float[Tensor, " pixels"]
    expected: Float[Tensor, "n pixels"] | None
    exhaustive: Bool[Tensor, " pixels"] | None
    """None where every minimal diagnosis was weighed at every pixel."""


def cumulative_choice(
    share: Float[Tensor, "candidates pixels"], generator: torch.Generator | None
) -> Float[Tensor, " pixels"]:
    """A draw per pixel with probability proportional to its share, from one uniform number each: the index, as a float.

    A candidate with share 0 is never drawn: the first one whose running sum exceeds the draw has a positive share.
    """
    sums = share.clone()
    running = sums.unbind(0)
    for before, after in pairwise(running):
        after += before  # in place; torch.cumsum along rows is several times slower on a CPU
    total = running[-1]
    uniform = torch.rand(total.shape, generator=generator, dtype=total.dtype, device=total.device)
    draw = torch.minimum(uniform * total, torch.nextafter(total, torch.zeros_like(total)))
    return share.shape[0] - (sums > draw).to(share.dtype).sum(0)


def first_largest(weight: Float[Tensor, "candidates pixels"], best: Float[Tensor, " pixels"]) -> Float[Tensor, " pixels"]:
    """The index of the first candidate that reaches `best`, the largest weight, as a float."""
    index = torch.arange(weight.shape[0], device=weight.device, dtype=weight.dtype)
    return ((weight < best).to(weight.dtype) * weight.shape[0] + index[:, None]).amin(0)
