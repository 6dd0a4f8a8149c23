"""Depthwise convolutions by a kernel of our own, on a GPU: cuDNN's are far from the speed of memory.

On a CPU, in bfloat16, some of their gradients are found in pieces, which is faster there.
"""

from __future__ import annotations

import sys
from typing import TypeVar, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from ..kernels import depthwise_cpu
from ..kernels.gpu import fuses
from .resize import channels_last

Model = TypeVar("Model", bound=nn.Module)

MOST = 7
"""Rows, and columns, of a window that the kernel takes."""
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def fuse_depthwise(model: Model) -> Model:
    """The model with its depthwise convolutions done by the kernel wherever that applies.

    Modules, parameters and their names stay the same.

    >>> model = fuse_depthwise(nn.Sequential(nn.Conv2d(8, 8, 3, groups=8, bias=False), nn.Conv2d(8, 4, 1)))
    >>> [type(module).__name__ for module in model]
    ['DepthwiseConv2d', 'Conv2d']
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d) and _fits(module):
            # Its class is changed, and not the module replaced: others may hold it, or have put hooks on it.
            same = type(module) is not nn.Conv2d
            module.__class__ = DepthwiseConv2d
            cast(DepthwiseConv2d, module).same = same
    return model


class DepthwiseConv2d(nn.Conv2d):
    """A depthwise convolution without bias; where neither applies it does what it did before."""

    same: bool
    """Whether the padding is TensorFlow's "same", which depends on the size of the image."""

    def forward(self, x: Float[Tensor, "b c _ _"]) -> Float[Tensor, "b c _ _"]:
        (top, bottom), (left, right) = self._padding(0, x.shape[-2]), self._padding(1, x.shape[-1])
        dtype = None if torch.compiler.is_compiling() else self._dtype(x)
        if dtype is not None:
            from ..kernels.triton_depthwise import Window, conv2d

            height, width = self.kernel_size
            window = Window(height, width, self.stride[0], self.dilation[0], top, left, bottom, right)
            if min(window.out(x.shape[-2], x.shape[-1])) > 0:  # else torch has an error to raise
                return conv2d(x.to(dtype), self.weight, window)
        if self.same:
            x = F.pad(x, (left, right, top, bottom))
        pieces = None if torch.compiler.is_compiling() else self._in_pieces(x)
        if pieces is not None:
            return depthwise_cpu.conv2d(x.to(torch.bfloat16), self.weight.to(torch.bfloat16), pieces)
        out: Tensor = self._conv_forward(x, self.weight, self.bias)
        return out

    def _padding(self, side: int, size: int) -> tuple[int, int]:
        """Before and after the rows (side 0), or the columns, of an image that has so many."""
        if not self.same:
            return int(self.padding[side]), int(self.padding[side])
        stride, reach = self.stride[side], (self.kernel_size[side] - 1) * self.dilation[side]
        both = max(((size - 1) // stride) * stride + reach + 1 - size, 0)
        return both // 2, both - both // 2

    def _dtype(self, x: Tensor) -> torch.dtype | None:
        """What the kernel would compute in, as torch would; None: the kernel does not apply."""
        autocast, dtype = self._computes(x)
        applies = (
            fuses(x.device)
            and self.weight.device == x.device
            and self.weight.is_contiguous()
            and x.dim() == 4
            and x.shape[1] == self.in_channels
            and channels_last(x)
            and 0 < x.numel() < 1 << 30  # the kernel counts to 1 << 31, also in the padding
            and dtype in DTYPES
            and (autocast or self.weight.dtype == dtype)
        )
        return dtype if applies else None

    def _in_pieces(self, x: Tensor) -> depthwise_cpu.Window | None:
        """How `x`, padded if that is "same", is looked at, if finding gradients in pieces pays."""
        autocast, dtype = self._computes(x)
        rounded = dtype == torch.bfloat16 and (autocast or self.weight.dtype == dtype)
        if not (x.device.type == self.weight.device.type == "cpu" and x.dim() == 4 and rounded):
            return None
        height, width = self.kernel_size
        down, across = (0, 0) if self.same else map(int, self.padding)
        window = depthwise_cpu.Window((height, width), self.stride[0], (down, across), self.dilation[0])
        return window if window.pays else None

    @staticmethod
    def _computes(x: Tensor) -> tuple[bool, torch.dtype]:
        """Whether that is autocast's to say, and in what it is computed then."""
        device = x.device.type
        autocast = torch.is_autocast_enabled(device) and x.dtype != torch.float64
        return autocast, torch.get_autocast_dtype(device) if autocast else x.dtype


def _fits(conv: nn.Conv2d) -> bool:
    timm = sys.modules.get("timm.layers")  # no convolution is timm's where it has not been imported
    known = (nn.Conv2d,) if timm is None else (nn.Conv2d, timm.Conv2dSame)
    return (
        type(conv) in known
        and 1 < conv.groups == conv.in_channels == conv.out_channels
        and conv.bias is None
        and conv.padding_mode == "zeros"
        and not isinstance(conv.padding, str)
        and max(conv.kernel_size) <= MOST
        and conv.stride in ((1, 1), (2, 2))
        and conv.dilation[0] == conv.dilation[1]
    )
