"""How kernels read predictions that they will use only later.

Loops read ahead, so that memory answers while they compute. But values of 16 bits are packed in pairs as soon as they
are there, for which the compiler waits. So bfloat16 is read as bits, straight into 32 of them where that can be said.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

PLAIN, BITS, STRAIGHT = 0, 1, 2


def narrow(values: Tensor) -> Tensor:
    """(b, n, pixels) in an order in which places within a channel can be counted in 32 bits."""
    return values if values.shape[2] * values.stride(2) < 1 << 31 else values.contiguous()


def as_read(values: Tensor) -> Tensor:
    """What to hand to a kernel."""
    return values.view(torch.int16) if values.dtype == torch.bfloat16 else values


def how_to_read(values: Tensor) -> int:
    """As numbers of their own type, as bits, or as bits by an instruction of NVIDIA's."""
    if values.dtype != torch.bfloat16:
        return PLAIN
    return STRAIGHT if values.is_cuda and torch.version.cuda is not None else BITS


@triton.jit
def read(pointer, READ: tl.constexpr):
    """To be made a number of by `number`."""
    if READ == 2:
        return tl.inline_asm_elementwise(
            "ld.global.u16 $0, [$1];", "=r,l", [pointer.to(tl.int64)], dtype=tl.uint32, is_pure=True, pack=1
        )
    elif READ == 1:
        return tl.load(pointer).to(tl.uint16, bitcast=True).to(tl.uint32)
    else:
        return tl.load(pointer)


@triton.jit
def number(raw, READ: tl.constexpr, WORK: tl.constexpr):
    """Of what was read; bfloat16 is the upper half of a float32."""
    if READ == 0:
        return raw.to(WORK)
    else:
        return (raw << 16).to(tl.float32, bitcast=True).to(WORK)
