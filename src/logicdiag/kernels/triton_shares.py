"""How likely the concepts on the path to a leaf are among their siblings, for GPUs.

Forward reads the logits once, a depth after the other: of a depth, only the siblings of the concept on a pixel's path
matter, so one running sum does. Backward reads them once and writes their gradient. The leaves under a concept are an
interval of indices, because channels are in depth-first order: a concept is on the path to a leaf if the leaf lies in
its own interval, and stands beside such a concept if the leaf lies in its parent's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import triton
import triton.language as tl
from torch import Tensor

from .layout import ROOT, leaf_intervals

BLOCK, WARPS = 256, 2


@dataclass(frozen=True)
class Siblings:
    """Per place the channel that stands there, by depth, and whether it is the last of its depth; per channel its
    depth, and the leaves under it and under its parent, from `first` to before `last`.
    """

    order: Tensor
    ends: Tensor
    depth: Tensor
    first: Tensor
    last: Tensor
    first_beside: Tensor
    last_beside: Tensor
    depths: int

    @classmethod
    def of(cls, parents: Sequence[int], device: torch.device | str) -> Siblings:
        """Of channels in depth-first order, by their parent channels."""
        first, last = leaf_intervals(parents)
        depth: list[int] = []
        for parent in parents:
            depth.append(0 if parent == ROOT else depth[parent] + 1)
        order = sorted(range(len(parents)), key=lambda channel: depth[channel])
        after = [depth[channel] for channel in order[1:]] + [-1]
        columns = (
            order,
            [int(depth[channel] != then) for channel, then in zip(order, after, strict=True)],
            depth,
            first,
            last,
            [0 if parent == ROOT else first[parent] for parent in parents],
            [max(last) if parent == ROOT else last[parent] for parent in parents],
        )
        tables = (torch.tensor(column, dtype=torch.int32, device=device) for column in columns)
        return cls(*tables, depths=max(depth) + 1)


def shares(siblings: Siblings, logits: Tensor, leaf: Tensor) -> Tensor:
    """Of `logits` (b, n, pixels), the log of how likely each concept on the path to each pixel's `leaf` (b, pixels) is
    among its siblings, from the top, in float32; 0 where the path has ended, or the leaf is below 0.
    """
    return cast(Tensor, _Shares.apply(logits, leaf, siblings))


class _Shares(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, leaf: Tensor, siblings: Siblings) -> Tensor:
        b, n, pixels = logits.shape
        leaf = leaf.contiguous()
        out = torch.empty(b, siblings.depths, pixels, dtype=torch.float32, device=logits.device)
        normaliser = torch.empty_like(out)
        if out.numel():
            _forward_shares[(triton.cdiv(pixels, BLOCK), b)](
                logits,
                leaf,
                siblings.order,
                siblings.ends,
                siblings.depth,
                siblings.first,
                siblings.last,
                siblings.first_beside,
                siblings.last_beside,
                out,
                normaliser,
                n,
                pixels,
                siblings.depths,
                *logits.stride(),
                BLOCK=BLOCK,
                num_warps=WARPS,
            )
        ctx.save_for_backward(logits, leaf, normaliser)
        ctx.siblings = siblings
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        logits, leaf, normaliser = ctx.saved_tensors
        siblings: Siblings = ctx.siblings
        b, n, pixels = logits.shape
        out = torch.empty_like(logits)
        if out.numel():
            _backward_shares[(triton.cdiv(pixels, BLOCK), b)](
                logits,
                leaf,
                siblings.depth,
                siblings.first,
                siblings.last,
                siblings.first_beside,
                siblings.last_beside,
                normaliser,
                grads[0].contiguous(),
                out,
                n,
                pixels,
                siblings.depths,
                *logits.stride(),
                *out.stride(),
                BLOCK=BLOCK,
                num_warps=WARPS,
            )
        return out, None, None


@triton.jit
def _forward_shares(
    logits,
    leaves,
    order,
    ends,
    depth,
    first,
    last,
    first_beside,
    last_beside,
    out,
    normaliser,
    n,
    pixels,
    depths,
    image_step,
    channel_step,
    pixel_step,
    BLOCK: tl.constexpr,
):
    image = tl.program_id(1).to(tl.int64)
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = pixel < pixels
    here = logits + image * image_step + pixel.to(tl.int64) * pixel_step
    leaf = tl.load(leaves + image * pixels + pixel, mask=inside, other=0).to(tl.int32)
    most = tl.full([BLOCK], -1e30, tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    taken = tl.zeros([BLOCK], tl.float32)
    place = tl.program_id(0) * 0
    for _ in range(n):
        channel = tl.load(order + place)
        z = tl.load(here + channel.to(tl.int64) * channel_step, mask=inside, other=0.0).to(tl.float32)
        beside = (leaf >= tl.load(first_beside + channel)) & (leaf < tl.load(last_beside + channel))
        on_path = (leaf >= tl.load(first + channel)) & (leaf < tl.load(last + channel))
        smaller = tl.exp(-tl.abs(z - most))
        more = tl.where(z > most, total * smaller + 1, total + smaller)
        total = tl.where(beside, more, total)
        most = tl.where(beside, tl.maximum(most, z), most)
        taken = tl.where(on_path, z, taken)
        if tl.load(ends + place) > 0:
            there = total > 0
            most = tl.where(there, most + tl.log(tl.where(there, total, 1.0)), 0.0)
            at = (image * depths + tl.load(depth + channel)) * pixels + pixel
            tl.store(out + at, tl.where(there, taken - most, 0.0), mask=inside)
            tl.store(normaliser + at, most, mask=inside)
            most = tl.full([BLOCK], -1e30, tl.float32)
            total = tl.zeros([BLOCK], tl.float32)
            taken = tl.zeros([BLOCK], tl.float32)
        place += 1


@triton.jit
def _backward_shares(
    logits,
    leaves,
    depth,
    first,
    last,
    first_beside,
    last_beside,
    normaliser,
    upstream,
    out,
    n,
    pixels,
    depths,
    image_step,
    channel_step,
    pixel_step,
    out_image_step,
    out_channel_step,
    out_pixel_step,
    BLOCK: tl.constexpr,
):
    image = tl.program_id(1).to(tl.int64)
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = pixel < pixels
    here = logits + image * image_step + pixel.to(tl.int64) * pixel_step
    there = out + image * out_image_step + pixel.to(tl.int64) * out_pixel_step
    leaf = tl.load(leaves + image * pixels + pixel, mask=inside, other=0).to(tl.int32)
    channel = tl.program_id(0) * 0
    for _ in range(n):
        z = tl.load(here + channel.to(tl.int64) * channel_step, mask=inside, other=0.0).to(tl.float32)
        beside = (leaf >= tl.load(first_beside + channel)) & (leaf < tl.load(last_beside + channel))
        on_path = (leaf >= tl.load(first + channel)) & (leaf < tl.load(last + channel))
        at = (image * depths + tl.load(depth + channel)) * pixels + pixel
        scale = tl.load(upstream + at, mask=inside & beside, other=0.0)
        share = tl.exp(tl.where(beside, z - tl.load(normaliser + at, mask=inside & beside, other=0.0), 0.0))
        grad = tl.where(beside & (scale != 0), (on_path.to(tl.float32) - share) * scale, 0.0)
        tl.store(there + channel.to(tl.int64) * out_channel_step, grad.to(out.dtype.element_ty), mask=inside)
        channel += 1
