"""What every way of diagnosing hands back, and the two ways of choosing among weighted candidates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Bool, Float
from torch import Tensor

FORBIDDEN = 1e30
"""Subtracted from the log weight of what is no minimal diagnosis: past any sum of log ratios, and exp() of it is 0."""


BELOW_ONE = 1 - 2.0**-22
"""Draws are kept at or below this, so that a draw times a sum is less than the sum after rounding, in float32 too."""


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
    draw = uniform(total.shape, total, generator) * total
    return share.shape[0] - torch.gt(sums, draw, out=sums).sum(0)


def uniform(shape: Sequence[int], like: Tensor, generator: torch.Generator | None) -> Tensor:
    drawn = torch.rand(shape, generator=generator, dtype=torch.float32, device=like.device)
    return drawn.clamp_(max=BELOW_ONE).to(like.dtype)


def first_largest(
    weight: Float[Tensor, "candidates pixels"], best: Float[Tensor, " pixels"]
) -> Float[Tensor, " pixels"]:
    """The index of the first candidate that reaches `best`, the largest weight, as a float."""
    index = torch.arange(weight.shape[0], device=weight.device, dtype=weight.dtype)
    worse = torch.lt(weight, best, out=torch.empty_like(weight))  # as floats: several times faster than through bool
    return worse.mul_(weight.shape[0]).add_(index[:, None]).amin(0)
