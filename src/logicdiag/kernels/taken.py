"""What every way of diagnosing hands back, and the two ways of choosing among weighted candidates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

FORBIDDEN = 1e30
"""Subtracted from the log weight of what is no minimal diagnosis: past any sum of log ratios, and exp() of it is 0."""


BELOW_ONE = 1 - 2.0**-22
"""Draws are kept at or below this, so that a draw times a sum is less than the sum after rounding, in float32 too."""


GOLDEN, FIRST_FACTOR, SECOND_FACTOR = (
    number - (1 << 64) for number in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)
"""Of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014), as signed numbers: torch multiplies these modulo 2^64."""


@dataclass(frozen=True)
class Keyed:
    """Chance that is a pixel's own: what is drawn for it hangs on its key, and not on who is worked on beside it.

    >>> both = Keyed.of_views(torch.tensor([7, 8]), (2, 2))
    >>> alone = Keyed.of_views(torch.tensor([8]), (2, 2))
    >>> torch.equal(both.at((1,)).numbers(3), alone.at((0,)).numbers(3))
    True
    """

    keys: Int64[Tensor, "*pixels"]

    @classmethod
    def of_views(cls, seeds: Int64[Tensor, " b"], size: Sequence[int]) -> Keyed:
        """A seed for each view, whose pixels have `size`."""
        count = torch.Size(size).numel()
        place = torch.arange(count, device=seeds.device)
        return cls(_mixed(seeds[:, None] + GOLDEN * (place + 1)).view(len(seeds), *size))

    def at(self, pixels: Tensor | tuple[int, ...]) -> Keyed:
        return Keyed(self.keys[pixels])

    def stream(self, number: int) -> Keyed:
        """The same pixels, for which other numbers are drawn."""
        return Keyed(_mixed(self.keys + number)) if number else self

    def numbers(self, count: int) -> Float[Tensor, "count pixels"]:
        """From 0 to below 1."""
        turn = torch.arange(1, count + 1, device=self.keys.device)
        bits = _mixed(self.keys.flatten() + GOLDEN * turn[:, None])
        return _shifted(bits, 40).float() * 2.0**-24


def _mixed(x: Int64[Tensor, "..."]) -> Int64[Tensor, "..."]:
    """Every bit hangs on every other (the finaliser of SplitMix64)."""
    x = (x ^ _shifted(x, 30)) * FIRST_FACTOR
    x = (x ^ _shifted(x, 27)) * SECOND_FACTOR
    return x ^ _shifted(x, 31)


def _shifted(x: Int64[Tensor, "..."], by: int) -> Int64[Tensor, "..."]:
    """To the right, with zeros coming in."""
    return (x >> by) & ((1 << (64 - by)) - 1)


Chance = torch.Generator | Keyed | None
"""Where draws come from; None: from torch's own generator."""


def part_of(chance: Chance, pixels: Tensor | None) -> Chance:
    """For some of the pixels; None: all."""
    return chance.at(pixels) if isinstance(chance, Keyed) and pixels is not None else chance


@dataclass
class Taken:
    """The diagnosis taken at each pixel of a block, as rows."""

    revised: Bool[Tensor, "n pixels"]
    log_prob: Float[Tensor, " pixels"]
    expected: Float[Tensor, "n pixels"] | None
    exhaustive: Bool[Tensor, " pixels"] | None
    """None where every minimal diagnosis was weighed at every pixel."""


def cumulative_choice(share: Float[Tensor, "candidates pixels"], generator: Chance) -> Float[Tensor, " pixels"]:
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


def uniform(shape: Sequence[int], like: Tensor, generator: Chance) -> Tensor:
    """Of shape (pixels), or (draws, pixels)."""
    if isinstance(generator, Keyed):
        drawn = generator.numbers(shape[0] if len(shape) > 1 else 1).view(tuple(shape))
    else:
        drawn = torch.rand(shape, generator=generator, dtype=torch.float32, device=like.device)
    return drawn.clamp_(max=BELOW_ONE).to(like.dtype)


def first_largest(
    weight: Float[Tensor, "candidates pixels"], best: Float[Tensor, " pixels"]
) -> Float[Tensor, " pixels"]:
    """The index of the first candidate that reaches `best`, the largest weight, as a float."""
    index = torch.arange(weight.shape[0], device=weight.device, dtype=weight.dtype)
    worse = torch.lt(weight, best, out=torch.empty_like(weight))  # as floats: several times faster than through bool
    return worse.mul_(weight.shape[0]).add_(index[:, None]).amin(0)
