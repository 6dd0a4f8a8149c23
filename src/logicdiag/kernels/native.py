"""The sweeps of `automaton.py` in machine code, for pixels on a CPU.

A sweep touches every state of the automaton several times. As tensor operations over many pixels that is bound by
memory; in `sweeps.py` a few pixels at a time go through all of it, within a cache, and a drawn run is followed state by
state instead of being handed down row by row. The additions are those of `automaton.py`, in the same order, so both
draw the same diagnoses from the same random numbers.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from .schedule import Schedule

available = importlib.util.find_spec("numba") is not None

Rows = Float[Tensor, "rows pixels"]
Pixels = Float[Tensor, " pixels"]


class Sums(NamedTuple):
    """Per pixel, of the products that a sweep met."""

    total: Pixels
    least: Pixels
    """The smallest positive one."""


def sample(
    schedule: Schedule, truth: Bool[Tensor, "rows pixels"], flip: Rows, less: Rows, draws: Float[Tensor, "draws pixels"]
) -> tuple[Bool[Tensor, "rows pixels"], Pixels, Sums]:
    """Labels after a drawn diagnosis, the log odds of what it flips, and the sums.

    `less` is exp(-|flip|): of keep and flip the likelier weighs 1, the other that.
    """
    from . import sweeps

    revised, (total, least, flipped) = torch.empty_like(truth), flip.new_zeros(3, flip.shape[1])
    _in_parallel(sweeps.sample, schedule, truth, flip, less, draws, revised, total, least, flipped)
    return revised, flipped, Sums(total, least)


def likeliest(
    schedule: Schedule, truth: Bool[Tensor, "rows pixels"], flip: Rows
) -> tuple[Bool[Tensor, "rows pixels"], Pixels]:
    """Labels after the likeliest diagnosis, and the log odds of what it flips."""
    from . import sweeps

    revised, flipped = torch.empty_like(truth), flip.new_zeros(flip.shape[1])
    _in_parallel(sweeps.likeliest, schedule, truth, flip, revised, flipped)
    return revised, flipped


def expect(schedule: Schedule, truth: Bool[Tensor, "rows pixels"], flip: Rows, less: Rows) -> tuple[Rows, Sums]:
    """The probability that each node is flipped, and the sums."""
    from . import sweeps

    share, (total, least) = torch.empty_like(flip), flip.new_zeros(2, flip.shape[1])
    _in_parallel(sweeps.expect, schedule, truth, flip, less, share, total, least)
    return share, Sums(total, least)


def _in_parallel(kernel: Callable[..., None], schedule: Schedule, *tensors: Tensor) -> None:
    """The kernel over all pixels, cut between the threads."""
    tables, arrays = schedule.flat, [tensor.numpy() for tensor in tensors]
    assert all(array.flags.c_contiguous for array in arrays)
    pixels = arrays[0].shape[-1]
    parts = max(1, min(torch.get_num_threads(), pixels // 256))
    bounds = [pixels * part // parts for part in range(parts + 1)]

    def work(part: int) -> None:
        kernel(*tables, bounds[part], bounds[part + 1], *arrays)

    others = [_threads(parts - 1).submit(work, part) for part in range(1, parts)] if parts > 1 else []
    work(0)
    for other in others:
        other.result()


@cache
def _threads(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, "logicdiag")
