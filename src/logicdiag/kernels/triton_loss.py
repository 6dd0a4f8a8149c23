"""Cross entropies against the path to a leaf, straight from the leaf's index, for GPUs.

Forward reads the logits once, backward reads them once and writes their gradient; no target per node, and nothing in
float32 of the size of the logits, is ever made. The leaves under a node are an interval of indices, because channels
are in depth-first order: a node is on the path to a leaf if the leaf lies in the node's interval. Likewise all that is
below a node is an interval of channels; where a pixel is sure of a concept and no further, those below it are passed
over, and any leaf under it is right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import triton
import triton.language as tl
from torch import Tensor

from .layout import leaf_intervals, subtree_stops

BLOCK, WARPS = 256, 2
FOLDED = 64
"""Factors, each at most 2, whose product is taken before its logarithm."""


@dataclass(frozen=True)
class Intervals:
    """Per channel the leaves under it, from `first` to before `last`, whether it is a leaf itself, and the channel
    after all that is below it.
    """

    first: Tensor
    last: Tensor
    leaf: Tensor
    stop: Tensor

    @classmethod
    def of(cls, parents: Sequence[int], device: torch.device | str) -> Intervals:
        """Of channels in depth-first order, by their parent channels."""
        inner = set(parents)
        columns = (
            *leaf_intervals(parents),
            [int(channel not in inner) for channel in range(len(parents))],
            subtree_stops(parents),
        )
        return cls(*(torch.tensor(column, dtype=torch.int32, device=device) for column in columns))


def leaf_loss(
    intervals: Intervals,
    logits: Tensor,
    leaf: Tensor,
    weight: Tensor | None,
    per_node: float,
    per_leaf: float,
    sure: Tensor | None = None,
) -> Tensor:
    """The sum over pixels of weight x (per_node x BCE of all nodes + per_leaf x cross entropy of the leaves).

    `logits` is (b, n, pixels), `leaf` (b, pixels) of whole numbers, below 0 where a pixel does not count. `sure` are
    channels (b, pixels) of concepts on the paths to the leaves, below which nothing is looked at.
    """
    return cast(Tensor, _LeafLoss.apply(logits, leaf, weight, sure, intervals, per_node, per_leaf))


def path_bce(intervals: Intervals, logits: Tensor, leaf: Tensor) -> Tensor:
    """The binary cross entropy of all nodes, summed, at each pixel of `logits` (b, n, pixels), without gradient."""
    b, n, pixels = logits.shape
    leaf = leaf.contiguous()
    each = torch.empty(b, pixels, dtype=torch.float32, device=logits.device)
    _forward[(triton.cdiv(pixels, BLOCK), b)](
        logits,
        leaf,
        leaf,
        leaf,
        intervals.first,
        intervals.last,
        intervals.leaf,
        intervals.stop,
        each,
        each,
        each,
        n,
        pixels,
        *logits.stride(),
        1.0,
        0.0,
        NODES=True,
        LEAVES=False,
        WEIGHT=False,
        SURE=False,
        EACH=True,
        FOLDED=FOLDED,
        BLOCK=BLOCK,
        num_warps=WARPS,
    )
    return each


class _LeafLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        leaf: Tensor,
        weight: Tensor | None,
        sure: Tensor | None,
        intervals: Intervals,
        per_node: float,
        per_leaf: float,
    ) -> Tensor:
        b, n, pixels = logits.shape
        leaf = leaf.contiguous()
        weight = None if weight is None else weight.contiguous()
        sure = None if sure is None else sure.contiguous()
        blocks = triton.cdiv(pixels, BLOCK)
        sums = torch.empty(b, blocks, dtype=torch.float32, device=logits.device)
        normaliser = torch.empty(b, pixels if per_leaf else 0, dtype=torch.float32, device=logits.device)
        within = torch.empty_like(normaliser) if sure is not None else normaliser
        _forward[(blocks, b)](
            logits,
            leaf,
            leaf if weight is None else weight,
            leaf if sure is None else sure,
            intervals.first,
            intervals.last,
            intervals.leaf,
            intervals.stop,
            normaliser,
            within,
            sums,
            n,
            pixels,
            *logits.stride(),
            per_node,
            per_leaf,
            NODES=per_node != 0,
            LEAVES=per_leaf != 0,
            WEIGHT=weight is not None,
            SURE=sure is not None,
            EACH=False,
            FOLDED=FOLDED,
            BLOCK=BLOCK,
            num_warps=WARPS,
        )
        ctx.save_for_backward(logits, leaf, weight, sure, normaliser, within)
        ctx.settings = intervals, per_node, per_leaf
        return sums.sum()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None, None, None, None]:
        logits, leaf, weight, sure, normaliser, within = ctx.saved_tensors
        intervals, per_node, per_leaf = ctx.settings
        b, n, pixels = logits.shape
        out = torch.empty_like(logits)
        _backward[(triton.cdiv(pixels, BLOCK), b)](
            logits,
            leaf,
            leaf if weight is None else weight,
            leaf if sure is None else sure,
            intervals.first,
            intervals.last,
            intervals.leaf,
            intervals.stop,
            normaliser,
            within,
            grads[0].contiguous(),
            out,
            n,
            pixels,
            *logits.stride(),
            *out.stride(),
            per_node,
            per_leaf,
            NODES=per_node != 0,
            LEAVES=per_leaf != 0,
            WEIGHT=weight is not None,
            SURE=sure is not None,
            BLOCK=BLOCK,
            num_warps=WARPS,
        )
        return out, None, None, None, None, None, None


@triton.jit
def _forward(
    logits,
    leaves,
    weights,
    sures,
    first,
    last,
    is_leaf,
    stops,
    normaliser,
    within,
    sums,
    n,
    pixels,
    image_step,
    channel_step,
    pixel_step,
    per_node,
    per_leaf,
    NODES: tl.constexpr,
    LEAVES: tl.constexpr,
    WEIGHT: tl.constexpr,
    SURE: tl.constexpr,
    EACH: tl.constexpr,
    FOLDED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    image = tl.program_id(1).to(tl.int64)
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = pixel < pixels
    at = image * pixels + pixel
    here = logits + image * image_step + pixel.to(tl.int64) * pixel_step
    leaf = tl.load(leaves + at, mask=inside, other=0).to(tl.int32)
    coming = tl.load(here, mask=inside, other=0.0)
    loss = tl.zeros([BLOCK], tl.float32)
    product = tl.full([BLOCK], 1.0, tl.float32)
    most = tl.full([BLOCK], -1e30, tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    taken = tl.zeros([BLOCK], tl.float32)
    most_within = tl.full([BLOCK], -1e30, tl.float32)
    total_within = tl.zeros([BLOCK], tl.float32)
    if SURE:
        sure = tl.load(sures + at, mask=inside, other=0).to(tl.int32)
        stop = tl.load(stops + sure)
    channel = tl.program_id(0) * 0
    for _ in range(n):
        z = coming.to(tl.float32)
        coming = tl.load(here + tl.minimum(channel + 1, n - 1).to(tl.int64) * channel_step, mask=inside, other=0.0)
        low = tl.load(first + channel)
        on_path = (leaf >= low) & (leaf < tl.load(last + channel))
        if SURE:
            under = (channel >= sure) & (channel < stop)
            below = under & (channel > sure)
            on_path = on_path & (below == 0)
        if NODES:
            # softplus(z), less z on the path; the logarithm of many factors is taken at once
            each = tl.maximum(z, 0.0) - tl.where(on_path, z, 0.0)
            factor = 1 + tl.exp(-tl.abs(z))
            if SURE:
                each = tl.where(below, 0.0, each)
                factor = tl.where(below, 1.0, factor)
            loss += each
            product *= factor
            if channel % FOLDED == FOLDED - 1:
                loss += tl.log(product)
                product = tl.full([BLOCK], 1.0, tl.float32)
        if LEAVES:
            if tl.load(is_leaf + channel) > 0:
                smaller = tl.exp(-tl.abs(z - most))
                total = tl.where(z > most, total * smaller + 1, total + smaller)
                most = tl.maximum(most, z)
                if SURE:
                    inner = tl.where(under, z, -1e30)
                    smaller = tl.exp(-tl.abs(inner - most_within))
                    more = tl.where(inner > most_within, total_within * smaller + 1, total_within + smaller)
                    total_within = tl.where(under, more, total_within)
                    most_within = tl.maximum(most_within, inner)
                else:
                    taken = tl.where(on_path, z, taken)
        channel += 1
    if NODES:
        loss = (loss + tl.log(product)) * per_node
    if LEAVES:
        most += tl.log(total)
        if SURE:
            taken = most_within + tl.log(total_within)
            tl.store(within + at, taken, mask=inside)
        loss += (most - taken) * per_leaf
        tl.store(normaliser + at, most, mask=inside)
    loss = tl.where(inside & (leaf >= 0), loss, 0.0)
    if WEIGHT:
        loss *= tl.load(weights + at, mask=inside, other=0.0).to(tl.float32)
    if EACH:
        tl.store(sums + at, loss, mask=inside)
    else:
        tl.store(sums + tl.program_id(1) * tl.num_programs(0) + tl.program_id(0), tl.sum(loss, 0))


@triton.jit
def _backward(
    logits,
    leaves,
    weights,
    sures,
    first,
    last,
    is_leaf,
    stops,
    normaliser,
    within,
    upstream,
    out,
    n,
    pixels,
    image_step,
    channel_step,
    pixel_step,
    out_image_step,
    out_channel_step,
    out_pixel_step,
    per_node,
    per_leaf,
    NODES: tl.constexpr,
    LEAVES: tl.constexpr,
    WEIGHT: tl.constexpr,
    SURE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    image = tl.program_id(1).to(tl.int64)
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = pixel < pixels
    at = image * pixels + pixel
    here = logits + image * image_step + pixel.to(tl.int64) * pixel_step
    there = out + image * out_image_step + pixel.to(tl.int64) * out_pixel_step
    leaf = tl.load(leaves + at, mask=inside, other=0).to(tl.int32)
    scale = tl.where(leaf >= 0, tl.load(upstream).to(tl.float32), 0.0)
    if WEIGHT:
        scale *= tl.load(weights + at, mask=inside, other=0.0).to(tl.float32)
    if LEAVES:
        most = tl.load(normaliser + at, mask=inside, other=0.0)
        if SURE:
            most_within = tl.load(within + at, mask=inside, other=0.0)
    if SURE:
        sure = tl.load(sures + at, mask=inside, other=0).to(tl.int32)
        stop = tl.load(stops + sure)
    coming = tl.load(here, mask=inside, other=0.0)
    channel = tl.program_id(0) * 0
    for _ in range(n):
        z = coming.to(tl.float32)
        coming = tl.load(here + tl.minimum(channel + 1, n - 1).to(tl.int64) * channel_step, mask=inside, other=0.0)
        on_path = ((leaf >= tl.load(first + channel)) & (leaf < tl.load(last + channel))).to(tl.float32)
        right = on_path  # the share of it among the leaves that are right
        if SURE:
            under = (channel >= sure) & (channel < stop)
            below = under & (channel > sure)
            if LEAVES:
                right = tl.where(under, tl.exp(tl.where(under, z - most_within, 0.0)), 0.0)
        grad = tl.zeros([BLOCK], tl.float32)
        if NODES:
            grad += (1 / (1 + tl.exp(-z)) - on_path) * per_node
            if SURE:
                grad = tl.where(below, 0.0, grad)
        if LEAVES:
            if tl.load(is_leaf + channel) > 0:
                grad += (tl.exp(z - most) - right) * per_leaf
        grad = tl.where(scale != 0, grad * scale, 0.0)
        tl.store(there + channel.to(tl.int64) * out_channel_step, grad.to(out.dtype.element_ty), mask=inside)
        channel += 1
