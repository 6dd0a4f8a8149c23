"""Depthwise convolutions in bfloat16 on a CPU, whose gradients PyTorch is slow to find, by what it is fast at.

The gradient of the input is a convolution with the mirrored window; where the stride skips rows it is PyTorch's own, in
float32, in which that is fast. The gradient of the weights is fast for windows of 3 x 3 without dilation: a larger one
is several of these, each on a shifted input. With dilation, taps share little of what they read, and each is a product
and a sum. Taps that no pixel of a small image can see are left out, forward too. `benchmarks/depthwise_cpu.py`
measures what this is worth.
"""

from __future__ import annotations

from itertools import product
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

SIDE = 3
"""Of the windows that a larger one is taken apart into."""


class Window(NamedTuple):
    """How the taps of a convolution lie: its options, as `F.conv2d` names them."""

    kernel: tuple[int, int]
    stride: int = 1
    padding: tuple[int, int] = (0, 0)
    dilation: int = 1

    @property
    def pays(self) -> bool:
        """Whether its gradients are found faster here than by PyTorch alone."""
        inside = all(p <= (k - 1) * self.dilation for p, k in zip(self.padding, self.kernel, strict=True))
        special = max(self.kernel) > SIDE or self.stride > 1 or self.dilation > 1
        return min(self.kernel) >= SIDE and inside and special and (self.stride == 1 or self.dilation == 1)


def conv2d(x: Tensor, weight: Tensor, window: Window) -> Tensor:
    """`F.conv2d` with a group for each channel, for a window that pays."""
    if window.dilation > 1:
        skipped = [_unseen(window, side, x.shape[2 + side]) for side in (0, 1)]
        (down, across), (height, width) = skipped, window.kernel
        weight = weight[:, :, down : height - down, across : width - across]
        padding = [p - n * window.dilation for p, n in zip(window.padding, skipped, strict=True)]
        window = window._replace(kernel=(height - 2 * down, width - 2 * across), padding=(padding[0], padding[1]))
    return cast(Tensor, _Depthwise.apply(x, weight, window))


def _unseen(window: Window, side: int, size: int) -> int:
    """How many rows (or columns, side 1) of taps at each end have no pixel of such an image, where it keeps its size.

    >>> window = Window((3, 3), padding=(12, 12), dilation=12)
    >>> _unseen(window, 0, 12), _unseen(window, 0, 13)
    (1, 0)
    """
    middle, odd = divmod(window.kernel[side], 2)
    if not odd or window.padding[side] != middle * window.dilation:
        return 0
    return max(0, middle - (size - 1) // window.dilation)


class _Depthwise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, window: Window) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.window = window
        return F.conv2d(x, weight, None, window.stride, window.padding, window.dilation, len(weight))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        of_input, of_weight = ctx.needs_input_grad[:2]
        return (
            _of_input(grad, x, weight, ctx.window) if of_input else None,
            _of_weight(grad, x, ctx.window) if of_weight else None,
            None,
        )


def _of_input(grad: Tensor, x: Tensor, weight: Tensor, window: Window) -> Tensor:
    if window.stride > 1:  # of x its size and its order in memory alone are looked at
        found = _gradient(grad.float(), x.float(), weight.float(), window.stride, window.padding, 0)
        return found.to(x.dtype)
    d = window.dilation
    padding = tuple((k - 1) * d - p for p, k in zip(window.padding, window.kernel, strict=True))
    return F.conv2d(grad, weight.flip(2, 3), padding=padding, dilation=d, groups=len(weight))


def _of_weight(grad: Tensor, x: Tensor, window: Window) -> Tensor:
    out = x.new_empty(x.shape[1], 1, *window.kernel)
    if window.dilation == 1 and max(window.kernel) == SIDE:
        return _gradient(grad, x, out, window.stride, window.padding, 1)
    down, across = window.padding
    x = F.pad(x, (across, across, down, down))
    if window.dilation > 1:
        rows, columns = grad.shape[2:]
        for i, j in product(*map(range, window.kernel)):
            top, left = i * window.dilation, j * window.dilation
            out[:, 0, i, j] = (x[:, :, top : top + rows, left : left + columns] * grad).sum((0, 2, 3))
        return out
    tall, wide = ((size - 1) * window.stride + SIDE for size in grad.shape[2:])
    small = x.new_empty(x.shape[1], 1, SIDE, SIDE)
    for i, j in product(*map(_starts, window.kernel)):
        part = x[:, :, i : i + tall, j : j + wide]
        out[:, :, i : i + SIDE, j : j + SIDE] = _gradient(grad, part, small, window.stride, (0, 0), 1)
    return out


def _starts(side: int) -> list[int]:
    """Where windows begin that cover so many taps; the last two may overlap.

    >>> _starts(3), _starts(5), _starts(6), _starts(7)
    ([0], [0, 2], [0, 3], [0, 3, 4])
    """
    return sorted({*range(0, side - SIDE, SIDE), side - SIDE})


def _gradient(grad: Tensor, x: Tensor, weight: Tensor, stride: int, padding: tuple[int, int], which: int) -> Tensor:
    """PyTorch's gradient of the input (0) or of the weights (1); of the other one the size alone is looked at."""
    wanted = [which == 0, which == 1, False]
    found = torch.ops.aten.convolution_backward(
        grad, x, weight, None, [stride, stride], [*padding], [1, 1], False, [0, 0], len(weight), wanted
    )
    return cast(Tensor, found[which])
