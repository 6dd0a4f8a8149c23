"""Depthwise convolutions of channels_last tensors, and their gradients, for GPUs.

A value takes part in few products, so memory sets the floor: forward reads the input and writes the output, and each
gradient moves as much again. What keeps a kernel from it is the number of instructions. So a thread holds eight
channels, which is one load of 16 bytes in half precision (channels stand together in memory), and several rows of one
column of outputs: a loaded value serves all the rows that a column of taps takes it to. Columns side by side find each
other's values in the cache of their multiprocessor. The rows of a thread lie as far apart as taps do, or those of a
dilated convolution would share nothing.

Weights come as (taps, channels), so that eight channels of a tap are one load, too. Sums are float32. The gradient of
the weights keeps a sum for each tap and channel in registers, so its threads hold fewer channels where taps are many;
programs write their sums side by side, and a second kernel adds them in a fixed order. Nothing is atomic: the same
input gives the same gradient.

Only what changes the code is a constant of it (the window's size, stride, rows of a thread), so that images of many
sizes share what was compiled once.
"""

from __future__ import annotations

from math import gcd
from typing import Any, NamedTuple, cast

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from .triton_window import _add_up, _gathered, _spread_out, _weight_sums

TILE = 1024
"""Channels times columns of a program; eight for each of its threads."""
WARPS = 4
NARROWEST, WIDEST = 32, 64
"""Channels of a program: 64 or 128 bytes of half precision, of the 128 that a line of the cache has."""
ROWS = (4, 2, 1)
"""Rows of a thread; fewer where there would be less than `ENOUGH` programs."""
ENOUGH = 264
"""Programs that keep a GPU of 132 multiprocessors busy."""
SUMS = 100
"""Sums of the weights' gradient that fit into the registers of a thread."""
SUM_WARPS = 1
"""Of a program of it: more of them write fewer partial sums, but have to wait for each other."""
SHARES = 1056
"""Warps among which it is divided: 8 for each multiprocessor, which have room for no more where sums are many."""
ADDED, TOGETHER = 512, 8
"""Partial sums that a program adds at once, at most, and of how many channels: 32 bytes of them."""


class Window(NamedTuple):
    """Where the taps of a convolution lie, and what is put around the image."""

    height: int
    width: int
    stride: int = 1
    dilation: int = 1
    top: int = 0
    left: int = 0
    bottom: int = 0
    right: int = 0

    def out(self, height: int, width: int) -> tuple[int, int]:
        """The size of the output for an input of that size."""
        tall = height + self.top + self.bottom - self.dilation * (self.height - 1) - 1
        wide = width + self.left + self.right - self.dilation * (self.width - 1) - 1
        return tall // self.stride + 1, wide // self.stride + 1


def conv2d(x: Tensor, weight: Tensor, window: Window) -> Tensor:
    """`F.conv2d` with a group for each channel, of a channels_last `x`; `weight` (c, 1, h, w) is rounded as `x` is."""
    return cast(Tensor, _Depthwise.apply(x, weight, window))


class _Depthwise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, window: Window) -> Tensor:
        taps = taps_of(weight, x.dtype)
        ctx.save_for_backward(x, weight, taps)
        ctx.window = window
        return forward(x, taps, window)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, weight, taps = ctx.saved_tensors
        grad = grads[0].contiguous(memory_format=torch.channels_last)
        of_input, of_weight, _ = ctx.needs_input_grad
        return (
            input_gradient(grad, taps, ctx.window, (x.shape[2], x.shape[3])) if of_input else None,
            weight_gradient(x, grad, weight, ctx.window) if of_weight else None,
            None,
        )


def taps_of(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """The weights as (taps, channels)."""
    by_tap = weight.detach().flatten(1).t()
    return torch.empty(by_tap.shape, dtype=dtype, device=weight.device).copy_(by_tap)


def forward(x: Tensor, taps: Tensor, window: Window) -> Tensor:
    return _gather(x, taps, window, window.out(x.shape[2], x.shape[3]), 0, 1)


def input_gradient(grad: Tensor, taps: Tensor, window: Window, size: tuple[int, int]) -> Tensor:
    """For an input of `size` (height, width). With a stride of 1 it is a convolution by the turned window."""
    if window.stride != 1:
        return _spread(grad, taps, window, size)
    top = window.dilation * (window.height - 1) - window.top
    left = window.dilation * (window.width - 1) - window.left
    return _gather(grad, taps, window._replace(top=top, left=left), size, len(taps) - 1, -1)


def weight_gradient(x: Tensor, grad: Tensor, weight: Tensor, window: Window) -> Tensor:
    """In the order of memory and the type of `weight`."""
    b, c, height, width = x.shape
    out_height, out_width = grad.shape[2:]
    count = window.height * window.width
    channels = _block(c)
    tile = 32 * SUM_WARPS * min(8, 1 << (SUMS // count).bit_length() - 1)
    pixels = max(1, tile // channels)
    chunks = triton.cdiv(c, channels)
    rows, spacing, meet = _rows(b * out_width * c, out_height, window, tile * WARPS // SUM_WARPS)
    bands = triton.cdiv(out_height, rows * spacing) * spacing
    columns = b * bands * out_width
    share = triton.cdiv(triton.cdiv(columns, pixels), max(1, SHARES // SUM_WARPS // chunks)) * pixels
    shares = triton.cdiv(columns, share)
    partial = torch.empty(shares, count, c, dtype=torch.float32, device=x.device)
    out = torch.empty_like(weight)
    with torch.cuda.device_of(x):
        _weight_sums[(chunks * shares,)](
            x,
            grad,
            partial,
            c // _unit(c),
            height,
            width,
            out_height,
            out_width,
            bands,
            columns,
            share,
            spacing,
            window.dilation,
            window.top,
            window.left,
            chunks,
            UNIT=_unit(c),
            HEIGHT=window.height,
            WIDTH=window.width,
            STRIDE=window.stride,
            MEET=meet,
            ROWS=rows,
            PIXELS=pixels,
            CHANNELS=channels,
            num_warps=SUM_WARPS,
        )
        added = min(ADDED, triton.next_power_of_2(shares))
        _add_up[(triton.cdiv(c, TOGETHER), count)](partial, out, c, count, shares, ADDED=added, CHANNELS=TOGETHER)
    return out


# ---- launches ----------------------------------------------------------------------------------------------------


def _gather(x: Tensor, taps: Tensor, window: Window, size: tuple[int, int], first_tap: int, tap_step: int) -> Tensor:
    b, c, height, width = x.shape
    out = torch.empty((b, c, *size), dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    channels = _block(c)
    pixels = TILE // channels
    chunks = triton.cdiv(c, channels)
    rows, spacing, meet = _rows(b * size[1] * c, size[0], window, TILE)
    bands = triton.cdiv(size[0], rows * spacing) * spacing
    columns = b * bands * size[1]
    with torch.cuda.device_of(x):
        _gathered[(chunks * triton.cdiv(columns, pixels),)](
            x,
            taps,
            out,
            c // _unit(c),
            height,
            width,
            *size,
            bands,
            columns,
            spacing,
            window.dilation,
            window.top,
            window.left,
            chunks,
            first_tap,
            tap_step,
            UNIT=_unit(c),
            HEIGHT=window.height,
            WIDTH=window.width,
            STRIDE=window.stride,
            MEET=meet,
            ROWS=rows,
            PIXELS=pixels,
            CHANNELS=channels,
            num_warps=WARPS,
        )
    return out


def _spread(grad: Tensor, taps: Tensor, window: Window, size: tuple[int, int]) -> Tensor:
    b, c, out_height, out_width = grad.shape
    out = torch.empty((b, c, *size), dtype=grad.dtype, device=grad.device, memory_format=torch.channels_last)
    channels = _block(c)
    pixels = TILE // channels
    chunks = triton.cdiv(c, channels)
    across = triton.cdiv(size[1] + window.left, window.stride)
    rows = max(window.stride, _rows(b * across * c, size[0], Window(1, 1), TILE)[0])
    bands = triton.cdiv(size[0] + window.top, rows)
    columns = b * bands * across
    with torch.cuda.device_of(grad):
        _spread_out[(chunks * triton.cdiv(columns, pixels),)](
            grad,
            taps,
            out,
            c // _unit(c),
            *size,
            out_height,
            out_width,
            bands,
            across,
            columns,
            window.top,
            window.left,
            chunks,
            UNIT=_unit(c),
            HEIGHT=window.height,
            WIDTH=window.width,
            STRIDE=window.stride,
            DILATION=window.dilation,
            ROWS=rows,
            PIXELS=pixels,
            CHANNELS=channels,
            num_warps=WARPS,
        )
    return out


def _block(channels: int) -> int:
    """Channels of a program: as many as possible, if they leave no more threads idle than half as many do."""
    size = WIDEST
    while size > NARROWEST and triton.cdiv(channels, size) * size > triton.cdiv(channels, size // 2) * (size // 2):
        size //= 2
    return size


def _unit(channels: int) -> int:
    """By how much the channels can be divided, which decides how wide loads are."""
    return gcd(channels, 16)


def _rows(each: int, height: int, window: Window, tile: int) -> tuple[int, int, int]:
    """Rows of a thread, if one row of all images and channels is `each` values; how far they are apart in the output,
    and how many steps of the taps that is in the input.
    """
    common = gcd(window.stride, window.dilation)
    spacing = window.dilation // common
    for rows in ROWS[:-1]:
        bands = triton.cdiv(height, rows * spacing) * spacing
        if rows * spacing <= height and each * bands >= ENOUGH * tile:
            return rows, spacing, window.stride // common
    return ROWS[-1], 1, 1
