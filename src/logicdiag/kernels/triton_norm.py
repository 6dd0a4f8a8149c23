"""Batch norm of channels_last tensors and the ReLU after it, and their gradients, for GPUs.

Layers are many and most are small, so the number of launches counts as much as what they move. There are two each way:
one sums, and one writes the result. The first leaves sums of shares of the pixels side by side, so few of them that
every program of the second adds up those of its channels again, in the same order: no launch between them, and nothing
is atomic. The first program of some channels also writes what is kept of them: their statistics, or the gradients of
weight and bias.

A share has its mean and the sum of squared distances from it, in float32; they are taken from its first pixel on, not
from 0, so that features far from 0 do not lose their variance: the first pixel is one of them, so the square of its
distance from the mean is at most their number times the variance. Only the input and the statistics are kept for the
gradient, which computes again where the activation was flat.

Only what changes the code is a constant of it, so that images of many sizes share what was compiled once.
"""

from __future__ import annotations

from math import gcd
from typing import Any, NamedTuple, cast

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from .triton_moments import _gradient, _normalise, _statistics, _sums

NARROW, WIDE = 16, 32
"""Channels of a program; narrow where there would be too few programs."""
PARTIAL = 2048
"""Sums of shares, times channels, that a program adds up: 16 KiB of means and squares."""
SUM_PROGRAMS, SUM_TILE, SUM_WARPS, AHEAD = 264, 2048, 8, 4
"""Programs that sum, two for each of 132 multiprocessors; values they add at once, and how many times in a row."""
PROGRAMS, TILE, WARPS = 1056, 4096, 4
"""Of those that write."""


def batch_norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    running: tuple[Tensor, Tensor, Tensor],
    momentum: float,
    eps: float,
    act: str = "none",
) -> Tensor:
    """As in training: by the statistics of the batch, of which `running` (mean, variance, how many) hears.

    `act` is none, relu or relu6. All but `x` are float32, and the number of batches is int64.
    """
    return cast(Tensor, _BatchNorm.apply(x, weight, bias, running, momentum, eps, act))


class _BatchNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        running: tuple[Tensor, Tensor, Tensor],
        momentum: float,
        eps: float,
        act: str,
    ) -> Tensor:
        cut = _cut(x)
        partial = torch.empty(2, cut.shares, x.shape[1], dtype=torch.float32, device=x.device)
        kept = torch.empty(2, x.shape[1], dtype=torch.float32, device=x.device)
        with torch.cuda.device_of(x):
            _statistics[(cut.chunks * cut.shares,)](x, partial, *cut.sizes, **cut.summing)
        out = _normalised(x, partial, weight, bias, running, kept, cut, momentum, eps, act, train=True)
        ctx.save_for_backward(x, weight, bias, kept)
        ctx.act = act
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, kept = ctx.saved_tensors
        return *gradients(x, weight, bias, kept, grads[0], ctx.act), None, None, None, None


def normalise(
    x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, var: Tensor, eps: float, act: str = "none"
) -> Tensor:
    """As in evaluation: by statistics that stay as they are. It has no gradient."""
    return _normalised(x, x, weight, bias, (mean, var, var), mean, _cut(x), 0.0, eps, act, train=False)


def gradients(
    x: Tensor, weight: Tensor, bias: Tensor, kept: Tensor, grad: Tensor, act: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Of the input, weight and bias; `kept` are the mean and the inverse of the standard deviation."""
    cut = _cut(x)
    grad = grad.contiguous(memory_format=torch.channels_last)
    partial = torch.empty(2, cut.shares, x.shape[1], dtype=torch.float32, device=x.device)
    out, of_both = torch.empty_like(x), torch.empty_like(kept)
    with torch.cuda.device_of(x):
        given = (x, grad, kept, weight, bias, partial)
        _sums[(cut.chunks * cut.shares,)](*given, *cut.sizes, ACT=act, **cut.summing)
        _gradient[(cut.chunks * cut.programs,)](
            *given, of_both, out, *cut.sizes, cut.each, ACT=act, SHARES=cut.most, **cut.writing
        )
    return out, of_both[0], of_both[1]


def _normalised(
    x: Tensor,
    partial: Tensor,
    weight: Tensor,
    bias: Tensor,
    running: tuple[Tensor, Tensor, Tensor],
    kept: Tensor,
    cut: _Cut,
    momentum: float,
    eps: float,
    act: str,
    train: bool,
) -> Tensor:
    out = torch.empty_like(x)
    with torch.cuda.device_of(x):
        _normalise[(cut.chunks * cut.programs,)](
            x,
            partial,
            weight,
            bias,
            *running,
            kept,
            out,
            momentum,
            eps,
            *cut.sizes,
            cut.each,
            TRAIN=train,
            ACT=act,
            SHARES=cut.most if train else 1,
            **cut.writing,
        )
    return out


class _Cut(NamedTuple):
    """How the work is divided: by channels, `chunks` of them, and by pixels, which are rows here."""

    sizes: tuple[int, int, int, int, int]
    """What the kernels take: groups of channels, rows, rows of a share, shares, chunks."""
    chunks: int
    shares: int
    most: int
    """Shares that there may be with so many channels: for each number of them another kernel would be compiled."""
    programs: int
    """Those that write, for each chunk."""
    each: int
    """Rows of them."""
    summing: dict[str, int]
    writing: dict[str, int]


def _cut(x: Tensor) -> _Cut:
    c = x.shape[1]
    rows, unit = x.numel() // c, gcd(c, 16)
    wide = triton.cdiv(c, WIDE) * (PARTIAL // WIDE) * 2 > SUM_PROGRAMS
    channels = WIDE if wide else NARROW
    chunks = triton.cdiv(c, channels)
    tall, high = SUM_TILE // channels, TILE // channels
    share = _part(rows, min(SUM_PROGRAMS // chunks, PARTIAL // channels), tall)
    each = _part(rows, PROGRAMS // chunks, high)
    shares = triton.cdiv(rows, share)
    options = {"UNIT": unit, "CHANNELS": channels}
    return _Cut(
        (c // unit, rows, share, shares, chunks),
        chunks,
        shares,
        PARTIAL // channels,
        triton.cdiv(rows, each),
        each,
        {**options, "ROWS": tall, "AHEAD": AHEAD, "num_warps": SUM_WARPS},
        {**options, "ROWS": high, "num_warps": WARPS},
    )


def _part(rows: int, parts: int, least: int) -> int:
    """Rows of each part, if there are to be so many, or fewer."""
    return max(triton.cdiv(rows, max(parts, 1)), least)
